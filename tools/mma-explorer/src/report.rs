//! Reports of what was measured: Markdown, and a page with plots that needs no other file.

use std::fmt::Write;

use nvfp4_gemv_documents::table::{Table, escape};

use crate::plot::{self, Bar, Line};
use crate::results::{Measured, Results};

const TERA: f64 = 1e12;
/// Lines that a plot can tell apart.
const LINES: usize = 8;

/// Two variants that differ in the type of sums alone.
struct Pair<'a> {
    in_f32: &'a Measured,
    in_f16: &'a Measured,
}

impl Pair<'_> {
    /// How many times as fast sums in f16 are, by the rate of the instruction alone.
    fn ratio(&self) -> Option<f64> {
        Some(self.in_f16.peak?.operations / self.in_f32.peak?.operations)
    }
}

fn pairs(results: &Results) -> Vec<Pair<'_>> {
    let all = &results.variants;
    let in_f32 = all.iter().filter(|measured| measured.accumulator == "f32");
    in_f32
        .filter_map(|in_f32| {
            let name = in_f32.name.replacen(".f32.", ".f16.", 1);
            let in_f16 = all.iter().find(|other| other.name == name)?;
            Some(Pair { in_f32, in_f16 })
        })
        .collect()
}

/// The variants by rate, fastest first.
fn by_rate(results: &Results) -> Vec<&Measured> {
    let rate = |measured: &Measured| measured.largest().map_or(0.0, |product| product.operations);
    let mut all: Vec<&Measured> = results.variants.iter().collect();
    all.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    all
}

fn conditions(results: &Results) -> String {
    format!(
        "{}, sm_{}, {} multiprocessors; NVRTC {}, cuBLASLt {}",
        results.device,
        results.arch,
        results.multiprocessors,
        results.nvrtc,
        results.cublaslt.as_deref().unwrap_or("not there")
    )
}

const HEAD: &str = "variant|machine code|bits of sums|latency, cycles|operations a cycle and SM|peak, T/s|of data sheet|\
    size|product, T/s|of peak|of peak, per cycle|of data sheet|of cuBLASLt|tiles";

fn row(measured: &Measured, multiprocessors: u32) -> [String; 14] {
    let none = || "-".to_string();
    let share = |part: Option<f64>, whole: Option<f64>| match (part, whole) {
        (Some(part), Some(whole)) => format!("{:.2}", part / whole),
        _ => none(),
    };
    let tera = |rate: Option<f64>| rate.map_or_else(none, |rate| format!("{:.1}", rate / TERA));
    let peak = measured.peak.map(|peak| peak.operations);
    let product = measured.largest();
    let rate = product.map(|product| product.operations);
    [
        measured.name.clone(),
        measured.machine.clone(),
        measured.sum_bits.map_or_else(none, |bits| bits.to_string()),
        measured
            .peak
            .map_or_else(none, |peak| format!("{:.1}", peak.latency)),
        measured
            .peak
            .map_or_else(none, |peak| format!("{:.0}", peak.operations_per_cycle)),
        tera(peak),
        share(peak, measured.data_sheet),
        product.map_or_else(none, |product| product.size.to_string()),
        match &measured.wrong {
            Some(_) => "WRONG".into(),
            None => tera(rate),
        },
        share(rate, peak),
        product
            .and_then(|product| measured.share_of_cycles(product, multiprocessors))
            .map_or_else(none, |share| format!("{share:.2}")),
        share(rate, measured.data_sheet),
        product
            .and_then(|product| product.share)
            .map_or_else(none, |share| format!("{share:.2}")),
        product.map_or_else(none, |product| product.tiles.clone()),
    ]
}

const PAIRS: &str = "variant|peak with sums in f32, T/s|in f16, T/s|ratio";

fn pair_row(pair: &Pair<'_>) -> Option<[String; 4]> {
    let tera = |measured: &Measured| Some(format!("{:.1}", measured.peak?.operations / TERA));
    Some([
        pair.in_f32.name.clone(),
        tera(pair.in_f32)?,
        tera(pair.in_f16)?,
        format!("{:.2}", pair.ratio()?),
    ])
}

const WHAT: &str = "Peak is nothing but the instruction, on ones; a product is a whole matrix product on random numbers, which \
                    draws more power, so that the GPU may lower its clock: \"per cycle\" compares operations a clock cycle. T/s are 10^12 operations a second, a product and an addition being two. Shares of \
                    cuBLASLt are medians of alternating rounds; for FP8 it adds as the instruction itself does. Bits of sums: the \
                    largest n for which a sum of 2^n and 1 is right; + where larger ones could not be tried.";

/// A report for reading as text.
pub fn markdown(results: &Results) -> String {
    let mut text = format!(
        "# Matrix instructions of {}\n\n{}.\n\n{WHAT}\n\n## All variants\n\n",
        cell(&results.device),
        cell(&conditions(results)),
    );
    text += &all(results, |figure| cell(&figure)).markdown();
    let pairs: Vec<_> = pairs(results).iter().filter_map(pair_row).collect();
    if !pairs.is_empty() {
        text += "\n## Sums in f16 and in f32\n\n";
        let mut table = Table::new(PAIRS.split('|'));
        let rows = pairs.into_iter();
        rows.for_each(|pair| table.row(pair.map(|text| cell(&text))));
        text += &table.markdown();
    }
    let sizes = sizes(results);
    if sizes.len() > 1 {
        text += "\n## By size\n\nProducts, T/s (share of cuBLASLt).\n\n";
        let head = sizes.iter().map(ToString::to_string);
        let mut table = Table::new(["variant".to_owned()].into_iter().chain(head));
        for measured in by_rate(results) {
            let figure = |size: &u32| {
                let mut all = measured.products.iter();
                let Some(product) = all.find(|product| product.size == *size) else {
                    return "-".to_string();
                };
                let share = product.share.map(|share| format!(" ({share:.2})"));
                format!(
                    "{:.1}{}",
                    product.operations / TERA,
                    share.unwrap_or_default()
                )
            };
            table.row(
                [cell(&measured.name)]
                    .into_iter()
                    .chain(sizes.iter().map(figure)),
            );
        }
        text += &table.markdown();
    }
    text
}

fn sizes(results: &Results) -> Vec<u32> {
    let products = results.variants.iter();
    let products = products.flat_map(|measured| &measured.products);
    let mut sizes: Vec<u32> = products.map(|product| product.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Text in Markdown.
fn cell(text: &str) -> String {
    escape(text).replace(['\n', '\r'], " ")
}

/// All figures, the fastest variant first; cells as `of` makes them.
fn all(results: &Results, of: fn(String) -> String) -> Table {
    let mut table = Table::new(HEAD.split('|'));
    for measured in by_rate(results) {
        table.row(row(measured, results.multiprocessors).map(of));
    }
    table
}

const STYLE: &str = "\
:root{color-scheme:light dark;--text:#1b1f24;--back:#fff;--axis:#d8dee4;--s0:#2f6fde;--s1:#d9822b;--s2:#2c9a5b;--s3:#8a5cd6;\
--s4:#c2407a;--s5:#1798a8;--s6:#7a6a3a;--s7:#68707a}\
@media(prefers-color-scheme:dark){:root{--text:#e6e9ed;--back:#14171a;--axis:#333a42}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);max-width:72rem;margin:2rem auto;padding:0 1rem}\
svg{width:100%;max-width:60rem;height:auto}.text{fill:var(--text);font:12px system-ui,sans-serif}\
.axis{stroke:var(--axis)}.mark{stroke:var(--text);stroke-width:2}.sheet{stroke-dasharray:3 2}.cublaslt{stroke:var(--s4)}\
.line{fill:none;stroke-width:2}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px}td,th{padding:.2rem .6rem;border-bottom:1px solid var(--axis);\
text-align:left;white-space:nowrap}td{font-variant-numeric:tabular-nums}";

/// A page of its own.
pub fn html(results: &Results) -> String {
    let mut style = STYLE.to_string();
    for i in 0..LINES {
        let _ = write!(
            style,
            ".s{i}{{fill:var(--s{i})}}.l{i}{{stroke:var(--s{i})}}"
        );
    }
    let title = format!("Matrix instructions of {}", results.device);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{title}</title>\n<style>{style}</style>\n<h1>{title}</h1>\n<p>{}.</p>\n<p>{WHAT}</p>\n",
        escape(&conditions(results)),
        title = escape(&title),
    );
    let _ = write!(
        page,
        "<h2>By variant</h2>\n<p>Bars: the matrix product, of the largest size; <span style=\"color:var(--s0)\">wgmma</span> \
         and <span style=\"color:var(--s1)\">mma.sync</span>. Lines across: peak (solid), data sheet (dashed), cuBLASLt \
         (coloured). T/s, with an axis for each type of operands.</p>\n",
    );
    for (kind, bars) in by_variant(results) {
        let label = format!("operations a second by variant: {kind}");
        let _ = write!(
            page,
            "<h3>{}</h3>\n{}",
            escape(&kind),
            plot::bars(&label, &bars, TERA)
        );
    }
    let of_sizes = by_size(results);
    if !of_sizes.is_empty() {
        let _ = write!(
            page,
            "<h2>By size</h2>\n<p>Products of the fastest {LINES} variants, T/s, by M = N = K.</p>\n{}",
            plot::lines("operations a second by size", &of_sizes, TERA)
        );
    }
    let sums = by_sums(results);
    if !sums.is_empty() {
        let _ = write!(
            page,
            "<h2>By type of sums</h2>\n<p>Peak with sums in <span style=\"color:var(--s0)\">f32</span> and in \
             <span style=\"color:var(--s1)\">f16</span>, T/s.</p>\n{}",
            plot::bars("peak by type of sums", &sums, TERA)
        );
    }
    page + "<h2>All figures</h2>\n" + &all(results, |text| text).html() + "</html>\n"
}

/// Types of operands that belong on one axis: their instructions have about the same rate. Types of one bit would
/// flatten all other types.
fn kind(measured: &Measured) -> String {
    const KINDS: [(&str, &[&str]); 5] = [
        ("FP8", &["e4m3", "e5m2"]),
        (
            "FP6, FP4, and these with FP8",
            &["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"],
        ),
        ("8-bit integers", &["s8", "u8"]),
        ("4-bit integers", &["s4", "u4"]),
        ("single bits", &["b1"]),
    ];
    let (a, b) = (measured.a.as_str(), measured.b.as_str());
    let mut kinds = KINDS.iter();
    match kinds.find(|(_, of)| of.contains(&a) && of.contains(&b)) {
        Some((kind, _)) => (*kind).into(),
        None if a == b => a.into(),
        None => format!("{a} with {b}"),
    }
}

/// The bars of each kind of operands, the fastest first; kinds as the document has them.
fn by_variant(results: &Results) -> Vec<(String, Vec<Bar>)> {
    let mut kinds: Vec<(String, Vec<Bar>)> = Vec::new();
    for measured in &results.variants {
        let kind = kind(measured);
        if kinds.iter().all(|(known, _)| *known != kind) {
            kinds.push((kind, Vec::new()));
        }
    }
    let bar = |measured: &Measured| {
        let product = measured.largest()?;
        let mark = |value: Option<f64>, class, name: &str| {
            value.map(|value| (value, class, format!("{name}: {:.1}", value / TERA)))
        };
        let peak = measured.peak.map(|peak| peak.operations);
        let marks = [
            mark(peak, "peak", "peak"),
            mark(measured.data_sheet, "sheet", "data sheet"),
            mark(product.cublaslt, "cublaslt", "cuBLASLt"),
        ];
        Some(Bar {
            name: measured.name.clone(),
            series: usize::from(measured.family != "wgmma"),
            value: product.operations,
            marks: marks.into_iter().flatten().collect(),
        })
    };
    for measured in by_rate(results) {
        let kind = kind(measured);
        let of_kind = kinds.iter_mut().find(|(known, _)| *known == kind);
        if let Some((_, bars)) = of_kind {
            bars.extend(bar(measured));
        }
    }
    kinds.retain(|(_, bars)| !bars.is_empty());
    kinds
}

fn by_size(results: &Results) -> Vec<Line> {
    let several = by_rate(results)
        .into_iter()
        .filter(|measured| measured.products.len() > 1);
    let line = |measured: &Measured| Line {
        name: measured.name.clone(),
        points: measured
            .products
            .iter()
            .map(|product| (f64::from(product.size), product.operations))
            .collect(),
    };
    several.take(LINES).map(line).collect()
}

fn by_sums(results: &Results) -> Vec<Bar> {
    let bar = |measured: &Measured, series| {
        Some(Bar {
            name: measured.name.clone(),
            series,
            value: measured.peak?.operations,
            marks: Vec::new(),
        })
    };
    pairs(results)
        .iter()
        .flat_map(|pair| [bar(pair.in_f32, 0), bar(pair.in_f16, 1)])
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::example;

    /// The example, with the first variant's twin whose sums are in f16 and twice as fast.
    fn with_a_pair() -> Results {
        let mut results = example();
        let mut twin = results.variants[0].clone();
        twin.name = "wgmma.m64n256k16.f16.f16.f16".into();
        twin.accumulator = "f16".into();
        if let Some(peak) = &mut twin.peak {
            peak.operations *= 2.0;
        }
        results.variants.push(twin);
        results
    }

    #[test]
    fn figures_stand_in_the_table() {
        let text = markdown(&with_a_pair());
        let line = |start: &str| {
            let found = text.lines().find(|line| line.starts_with(start));
            found.unwrap_or_default().to_string()
        };
        assert_eq!(
            line("| wgmma.m64n256k16.f32"),
            "| wgmma.m64n256k16.f32.f16.f16 | HGMMA (native) | 23+ | 128.0 | 4096 | 960.0 | 0.97 | 8192 | 608.2 | 0.63 | 0.75 | 0.61 | \
             0.88 | 128x256x128/64x256/4/8/2 |"
        );
        assert!(text.contains("| wgmma.m64n256k16.f32.f16.f16 | 960.0 | 1920.0 | 2.00 |"));
        assert!(text.contains("| mma.m16n8k32.f16.e4m3.e5m2 | 604.1 | 608.2 |"));
        assert!(text.contains("| wgmma.m64n256k16.f32.f16.f16 | 604.1 (0.88) | 608.2 (0.88) |"));
    }

    #[test]
    fn the_page_needs_no_other_file_and_names_are_text() {
        let mut results = with_a_pair();
        results.device = "<script>alert(1)</script>".into();
        results.variants[0].tried.clear();
        let page = html(&results);
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt;"));
        assert!(!page.contains("src=") && !page.contains("href=") && !page.contains("http"));
        // f16 and FP8 have a plot of variants each.
        assert_eq!(page.matches("<svg").count(), 4);
        assert_eq!(page.matches("</svg>").count(), 4);
        assert!(!markdown(&results).contains("<script>"));
    }

    /// Values that are ten times as large do not flatten those that people look for.
    #[test]
    fn each_type_of_operands_has_an_axis_of_its_own() {
        let mut results = with_a_pair();
        let mut bits = results.variants[0].clone();
        (bits.a, bits.b) = ("b1".into(), "b1".into());
        bits.name = "wgmma.m64n256k256.s32.b1.b1.and".into();
        for product in &mut bits.products {
            product.operations *= 12.0;
        }
        results.variants.push(bits);
        let kinds = by_variant(&results);
        let names: Vec<&str> = kinds.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(names, ["f16", "FP8", "single bits"]);
        let of_f16 = &kinds[0].1;
        assert_eq!(of_f16.len(), 2);
        assert!(of_f16.iter().all(|bar| bar.value < 1e15), "{of_f16:?}");
        let page = html(&results);
        let (_, f16) = page.split_once("<h3>f16</h3>").unwrap();
        let (f16, _) = f16.split_once("</svg>").unwrap();
        assert!(f16.contains(">2000<") && !f16.contains(">8000<"), "{f16}");
    }

    /// The page in docs is what this draws of the measurement beside it.
    #[test]
    fn the_committed_page_shows_the_committed_measurement() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mma-explorer");
        let read = |name| std::fs::read_to_string(folder.join(name)).unwrap();
        let results = Results::parse(&read("h200.json")).unwrap();
        assert!(
            markdown(&results) == read("h200.md"),
            "mma-explorer report docs/mma-explorer/h200.json, then copy report.md there"
        );
        let page = html(&results);
        let name = |variant: &Measured| page.contains(&variant.name);
        assert!(results.variants.iter().all(name));
        assert_eq!(page.matches("<svg").count(), 9);
    }

    #[test]
    fn wrong_and_missing_figures_show() {
        let mut results = example();
        results.variants[0].wrong = Some("3 of 4 elements are wrong".into());
        results.variants[1].products.clear();
        results.variants[1].peak = None;
        let text = markdown(&results);
        assert!(text.contains("| WRONG |"), "{text}");
        assert!(text.contains(
            "| mma.m16n8k32.f16.e4m3.e5m2 | HGMMA (native) | 23+ | - | - | - | - | - | - | - |"
        ));
        assert_eq!(html(&results).matches("<svg").count(), 2);
    }
}
