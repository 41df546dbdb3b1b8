//! A document as one HTML page that needs nothing else: no script, no font, no request.

use nvfp4_gemv_documents::document::Document;
use nvfp4_gemv_documents::table::{Table, escape};

use super::summary::{SUSTAINED, by_shape, crossing_table, dispatch, facts, sustained, times};
use super::view::{Kind, cases, distinct, kinds};
use super::{bars, curves};
use crate::nightly::history::{self, Record};

/// A statement of a nightly run that stands before the numbers.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) text: String,
    pub(crate) good: bool,
    pub(crate) tables: Vec<Table>,
}

impl Finding {
    pub(crate) fn markdown(&self) -> String {
        let tables = self.tables.iter();
        let tables = tables.map(|table| format!("\n{}", table.markdown()));
        format!("{}\n{}", self.text, tables.collect::<String>())
    }
}

const STYLE: &str = include_str!("page.css");

pub(crate) fn render(document: &Document, history: &[Record], findings: &[Finding]) -> String {
    let title = format!("nvfp4-gemv on {}", escape(&document.device.name));
    let mut body = format!("<h1>{title}</h1>\n");
    for fact in facts(document) {
        body.push_str(&format!("<p>{}</p>\n", escape(&fact)));
    }
    for finding in findings {
        let class = if finding.good { "good" } else { "bad" };
        body.push_str(&format!(
            "<p class=\"{class}\">{}</p>\n{}",
            escape(&finding.text),
            finding.tables.iter().map(Table::html).collect::<String>()
        ));
    }
    body.push_str(&legend(document));
    for (i, kind) in kinds(document).iter().enumerate() {
        body.push_str(&section(document, kind, i == 0));
    }
    if !history.is_empty() {
        body.push_str(&format!(
            "<h2>History</h2>\n<p>Share of the ceiling of one vector, night after night.</p>\n{}",
            figures(history::draw(history, &document.device))
        ));
    }
    let (sentence, bad) = dispatch(document);
    body.push_str(&format!(
        "<h2>The dispatch's choices</h2>\n<p>{}</p>\n{}",
        escape(&sentence),
        or_nothing(&bad)
    ));
    let repeated = sustained(document);
    if !repeated.is_empty() {
        let table = repeated.html();
        body.push_str(&format!("<h2>Sustained</h2>\n<p>{SUSTAINED}</p>\n{table}"));
    }
    let crossings = crossing_table(document);
    if !crossings.is_empty() {
        body.push_str(&format!("<h2>Where paths cross</h2>\n{}", crossings.html()));
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}

/// Plots and numbers of one kind of operands.
fn section(document: &Document, kind: &Kind, open: bool) -> String {
    let cases = cases(document, kind);
    let mut text = "<h3>Share of the memory ceiling</h3>\n".to_owned();
    let mut counts = distinct(cases.iter().map(|case| case.n));
    counts.sort_unstable();
    for (i, n) in counts.iter().enumerate() {
        let cases: Vec<_> = cases.iter().copied().filter(|case| case.n == *n).collect();
        let vectors = if *n == 1 { "vector" } else { "vectors" };
        text.push_str(&details(
            &format!("{n} {vectors}"),
            &figures(bars::draw(&cases)),
            i == 0,
        ));
    }
    let curves: Vec<String> = by_shape(&cases)
        .iter()
        .filter_map(|cases| curves::draw(cases))
        .collect();
    if !curves.is_empty() {
        text.push_str("<h3>Time against the number of vectors</h3>\n");
        text.push_str(&figures(curves));
    }
    text.push_str(&details("Numbers", &times(document, kind).html(), false));
    details(&kind.title(), &text, open).replacen("<summary>", "<summary class=\"section\">", 1)
}

fn details(summary: &str, content: &str, open: bool) -> String {
    let open = if open { " open" } else { "" };
    format!(
        "<details{open}><summary>{}</summary>\n{content}</details>\n",
        escape(summary)
    )
}

fn figures(drawings: impl IntoIterator<Item = String>) -> String {
    let drawings: String = drawings.into_iter().collect();
    format!("<div class=\"figures\">\n{drawings}</div>\n")
}

fn or_nothing(table: &Table) -> String {
    if table.is_empty() {
        String::new()
    } else {
        table.html()
    }
}

/// The colours of the paths that were measured.
fn legend(document: &Document) -> String {
    let paths = document
        .cases
        .iter()
        .flat_map(|case| case.paths.iter().map(|path| &path.path));
    let entry = |class: &str, text: &str| {
        format!(
            "<span><svg width=\"14\" height=\"14\"><rect class=\"fill {class}\" width=\"14\" height=\"14\"/></svg> {}</span>\n",
            escape(text)
        )
    };
    let mut text: String = distinct(paths)
        .into_iter()
        .map(|path| entry(super::svg::path_class(path), path))
        .collect();
    if document
        .cases
        .iter()
        .any(|case| case.paths.iter().any(|path| path.mode == "chained"))
    {
        text.push_str(&entry("other chained", "paler: chained launches"));
    }
    if document.cases.iter().any(|case| case.cublas.is_some()) {
        text.push_str(&entry("other", "cuBLAS with f16 weights"));
    }
    format!(
        "<p class=\"legend\">{text}<span>dashed: the ceiling</span>\n\
         <span>whiskers: 5th to 95th percentile of the rounds</span>\n\
         <span>arrow: a whisker that goes on, to the number above it</span></p>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::svg::PHONE;
    use super::super::testing;
    use super::*;
    use nvfp4_gemv_documents::document::Measured;

    /// The smallest text of a drawing, in pixels.
    const FONT: f64 = 12.0;

    /// Opening and closing tags of a name.
    fn tags(page: &str, name: &str) -> (usize, usize) {
        let opening = |end: &str| page.matches(&format!("<{name}{end}")).count();
        (
            opening(" ") + opening(">"),
            page.matches(&format!("</{name}>")).count(),
        )
    }

    /// The value of an attribute in a line of a drawing.
    fn attribute<'a>(line: &'a str, name: &str) -> &'a str {
        let (_, rest) = line.split_once(&format!(" {name}=\"")).unwrap();
        rest.split_once('"').unwrap().0
    }

    /// Everything that is written in drawings has a size that can be read, and room, on a phone of 420 pixels.
    #[test]
    fn drawings_can_be_read_on_a_phone() {
        let mut document = testing::document();
        // The longest names, and numbers of every length.
        let longest = |path: &mut Measured| {
            path.path = "tensor-core".into();
            path.kernel = Some("mma-fp4".into());
            path.board.sm_mhz = Some(1980.0);
            path.board.watts = Some(1200.0);
            path.median_us *= 1e4;
            path.samples_us.iter_mut().for_each(|us| *us = 10.0 / 3.2);
        };
        document.cases.iter_mut().for_each(|case| {
            (case.m, case.k, case.l) = (114_688, 16_384, 128);
            case.paths[0].samples_us[..2].fill(1.0);
            case.paths[1..].iter_mut().for_each(longest);
        });
        let history = [history::testing::record("2026-11-20", 0.8)];
        for document in [testing::document(), document] {
            let page = render(&document, &history, &[]);
            let (mut width, mut texts) = (0.0, 0);
            for line in page.lines() {
                if line.starts_with("<svg role") {
                    width = attribute(line, "width").parse::<f64>().unwrap();
                }
                let Some(text) = line
                    .strip_prefix("<text")
                    .and_then(|rest| Some(rest.split_once('>')?.1.split_once('<')?.0))
                else {
                    continue;
                };
                let shrunk = (PHONE / width).min(1.0);
                assert!(FONT * shrunk >= 11.0, "{width}: {line}");
                // Letters of this font are about half as wide as high, digits a little more.
                let of = 0.58 * FONT * text.chars().count() as f64;
                let x: f64 = attribute(line, "x").parse().unwrap();
                let (from, to) = match attribute(line, "text-anchor") {
                    "start" => (x, x + of),
                    "end" => (x - of, x),
                    _ => (x - of / 2.0, x + of / 2.0),
                };
                assert!(
                    from >= -2.0 && to <= width + 2.0,
                    "{from} to {to} of {width}: {line}"
                );
                texts += 1;
            }
            assert!(texts > 20, "{texts}");
        }
        // No rule of the style sheet makes them smaller.
        for rule in STYLE.split("svg text").skip(1) {
            let (rule, _) = rule.split_once('}').unwrap();
            let sizes = rule.match_indices("px").map(|(at, _)| {
                let digits = rule[..at].rsplit(|c: char| !c.is_ascii_digit()).next();
                digits.unwrap().parse::<f64>().unwrap()
            });
            assert!(sizes.into_iter().all(|size| size >= FONT), "{rule}");
        }
    }

    #[test]
    fn a_page_stands_alone_and_has_the_plots() {
        let finding = Finding {
            text: "1 < 2".into(),
            good: false,
            tables: Vec::new(),
        };
        let history = [history::testing::record("2026-11-20", 0.8)];
        let page = render(&testing::document(), &history, &[finding]);
        for request in [
            "http:", "https:", "url(", "<script", "<link", "@import", " src=",
        ] {
            assert!(!page.contains(request), "{request}");
        }
        for name in ["svg", "details", "table", "p", "div", "text", "title"] {
            let (opened, closed) = tags(&page, name);
            assert!(opened == closed && opened > 0, "{name}: {opened} {closed}");
        }
        assert!(page.contains("prefers-color-scheme: dark"));
        assert!(page.contains("Test GPU &lt;1&gt;") && !page.contains("GPU <1>"));
        assert!(page.contains("<p class=\"bad\">1 &lt; 2</p>"));
        assert!(page.contains("cuda-core to tensor-core near n = 1.7"));
        assert!(page.contains("<h2>History</h2>"));
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }
}
