//! Time against the number of vectors on one shape: a line a type of vectors, the numbers below it.

use anyhow::{Result, bail};
use nvfp4_gemv_documents::document::{Case, Document};

use super::super::crossing::CublasFaster;
use super::super::svg::{Anchor, Svg, grid};
use super::super::view::time;
use super::{LAYOUT, MARGIN, WIDTH, check_is_real, finish, is_plain, measured_on, picked};

/// Rows, elements of a row and batches: a layer of a decoder, in the middle of the suite.
const SHAPE: (usize, usize, usize) = (14336, 4096, 1);

/// Types of vectors: as documents name them, and as the picture does.
const VECTORS: [(&str, &str); 3] = [("nvfp4", "NVFP4"), ("f16", "f16"), ("bf16", "bf16")];

const LEFT: f64 = 84.0;
const RIGHT: f64 = 32.0;
const TOP: f64 = 58.0;
/// Height of the plot itself.
const PLOT: f64 = 180.0;
/// Height of a line of the table below the plot, and of the caption.
const LINE: f64 = 17.0;

/// One line of the plot and row of the table.
struct Series {
    name: &'static str,
    class: &'static str,
    /// The numbers of vectors, rising, with their microseconds.
    points: Vec<(usize, f64)>,
}

impl Series {
    fn text(&self) -> String {
        let points = self.points.iter();
        let points = points.map(|(n, us)| format!("{} with n = {n}", time(*us)));
        format!("{}: {}.", self.name, points.collect::<Vec<_>>().join(", "))
    }
}

pub(super) fn draw(document: &Document) -> Result<String> {
    check_is_real(document)?;
    let series = series(document)?;
    let mut counts: Vec<usize> = series
        .iter()
        .flat_map(|series| series.points.iter().map(|point| point.0))
        .collect();
    counts.sort_unstable();
    counts.dedup();
    let [first, .., last] = counts[..] else {
        bail!("there is only one number of vectors");
    };
    let times = series.iter().flat_map(|series| &series.points);
    let (end, step) = grid(times.fold(0.0, |most, point| point.1.max(most)));

    let bottom = TOP + PLOT;
    let table = bottom + 20.0;
    let mut caption = vec![
        measured_on(document),
        format!(
            "Weights from memory; medians of {} rounds",
            document.method.rounds
        ),
        "Ceiling: the time to only read the weights".to_owned(),
    ];
    // cuBLAS has f16 vectors too.
    let f16 = cases(document, "f16");
    let cublas = f16.iter().find_map(|case| case.cublas.as_ref());
    let faster = CublasFaster::of(&f16);
    if let Some((cublas, text)) = cublas.zip(faster.text()) {
        caption.push(format!(
            "cuBLAS {}: f16 weights and vectors",
            cublas.version
        ));
        caption.push(format!("Against f16 vectors: {text}"));
    }
    let rows = 1 + series.len() + caption.len();
    let height = table + LINE * rows as f64 + 6.0;
    let mut svg = Svg::new(WIDTH, height);
    // Doublings of n lie equally far apart.
    let doublings = |n: usize| (n as f64 / first as f64).log2();
    let begin = LEFT + 22.0;
    let x = |n: usize| begin + (WIDTH - RIGHT - begin) * doublings(n) / doublings(last);
    let y = |us: f64| bottom - PLOT * us / end;

    let (m, k, _) = SHAPE;
    let title = format!("{m}x{k}: time against vectors");
    svg.text((MARGIN, 22.0), Anchor::Start, "label", &title);
    let how = "NVFP4 weights, us a call, by type of the vectors";
    svg.text((MARGIN, 41.0), Anchor::Start, "small", how);
    for i in 0..=(end / step).round() as usize {
        let us = step * i as f64;
        svg.level((LEFT, WIDTH - MARGIN), y(us), &us.to_string());
    }
    svg.text((MARGIN, table), Anchor::Start, "small", "vectors");
    for n in &counts {
        svg.text((x(*n), table), Anchor::Middle, "small", &n.to_string());
    }
    for (i, series) in series.iter().enumerate() {
        draw_series(&mut svg, series, table + LINE * (i + 1) as f64, &x, &y);
    }
    if let CublasFaster::From { n, us } = faster {
        let text = faster.text().unwrap_or_default();
        let at = begin + (WIDTH - RIGHT - begin) * (n / first as f64).log2() / doublings(last);
        svg.line((at, TOP), (at, bottom), "crossing");
        svg.dot((at, y(us)), "crossing", &text);
    }
    for (i, line) in caption.iter().enumerate() {
        let row = 1 + series.len() + i;
        let at = (MARGIN, table + LINE * row as f64 + 4.0);
        svg.text(at, Anchor::Start, "small", line);
    }
    let lines: Vec<String> = series.iter().map(Series::text).collect();
    let description = format!("{} {}.", lines.join(" "), caption.join(". "));
    Ok(finish(svg, &title, &description))
}

/// A line with its points, and at `row` its colour, name and numbers.
fn draw_series(
    svg: &mut Svg,
    series: &Series,
    row: f64,
    x: &impl Fn(usize) -> f64,
    y: &impl Fn(f64) -> f64,
) {
    let class = series.class;
    let line: Vec<(f64, f64)> = series.points.iter().map(|&(n, us)| (x(n), y(us))).collect();
    svg.curve(&line, &format!("line {class}"));
    let key = [(MARGIN, row - 4.0), (MARGIN + 18.0, row - 4.0)];
    svg.curve(&key, &format!("line {class}"));
    svg.text((MARGIN + 24.0, row), Anchor::Start, "", series.name);
    for &(n, us) in &series.points {
        if class != "ceiling" {
            let title = format!("{}, n = {n}: {}", series.name, time(us));
            svg.dot((x(n), y(us)), &format!("fill {class}"), &title);
        }
        // Eight columns have room for four characters each.
        let digits = usize::from(us < 99.95);
        svg.text((x(n), row), Anchor::Middle, "", &format!("{us:.digits$}"));
    }
}

/// The cases of the picture with one type of vectors, n rising.
fn cases<'a>(document: &'a Document, activation: &str) -> Vec<&'a Case> {
    let cases = document.cases.iter();
    let mut cases: Vec<&Case> = cases
        .filter(|case| {
            (case.m, case.k, case.l) == SHAPE && case.activation == activation && is_plain(case)
        })
        .collect();
    cases.sort_by_key(|case| case.n);
    cases
}

/// The types of vectors, then cuBLAS where it took turns, then the ceiling.
fn series(document: &Document) -> Result<Vec<Series>> {
    let of = |activation: &str| cases(document, activation);
    let mut all = Vec::new();
    for (class, name) in VECTORS {
        let cases = of(class);
        if cases.is_empty() {
            let (m, k, _) = SHAPE;
            bail!("no case of {m}x{k} has {class} vectors and {LAYOUT} scales");
        }
        let points = cases
            .iter()
            .map(|case| Ok((case.n, picked(case)?.median_us)));
        all.push(Series {
            name,
            class,
            points: points.collect::<Result<_>>()?,
        });
    }
    let cublas = of("f16");
    let points = cublas
        .iter()
        .filter_map(|case| Some((case.n, case.cublas.as_ref()?.times.median_us)));
    let points: Vec<(usize, f64)> = points.collect();
    if !points.is_empty() {
        all.push(Series {
            name: "cuBLAS",
            class: "cublas",
            points,
        });
    }
    let ceiling = of("nvfp4");
    all.push(Series {
        name: "ceiling",
        class: "ceiling",
        points: ceiling
            .iter()
            .map(|case| (case.n, case.ceiling.median_us))
            .collect(),
    });
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::super::testing;
    use super::*;
    use crate::testing::contains;

    /// n = 1 and 4; NVFP4 takes 12 and 18 us, f16 and bf16 one more and two more.
    fn document() -> Document {
        let mut document = testing::document();
        document.cases.truncate(2);
        for case in &mut document.cases {
            (case.m, case.k, case.l) = SHAPE;
            case.layout = LAYOUT.into();
        }
        for (more, activation) in [(1.0, "f16"), (2.0, "bf16")] {
            for i in 0..2 {
                let mut case = document.cases[i].clone();
                case.activation = activation.into();
                case.paths[0].median_us += more;
                document.cases.push(case);
            }
        }
        // The order of a document is not the order of n.
        document.cases.reverse();
        document
    }

    #[test]
    fn lines_rise_with_their_times() {
        let picture = draw(&document()).unwrap();
        let heights = |class: &str| -> Vec<f64> {
            let circles = picture.lines().filter(|line| {
                line.starts_with("<circle") && line.contains(&format!("\"fill {class}\""))
            });
            let height = |line: &str| {
                let (_, rest) = line.split_once("cy=\"").unwrap();
                rest.split_once('"').unwrap().0.parse().unwrap()
            };
            circles.map(height).collect()
        };
        // The axis begins at 0 and ends at 20.
        let at = |us: f64| TOP + PLOT * (1.0 - us / 20.0);
        for (class, times) in [
            ("nvfp4", [12.0, 18.0]),
            ("f16", [13.0, 19.0]),
            ("bf16", [14.0, 20.0]),
        ] {
            let heights = heights(class);
            assert_eq!(heights.len(), 2, "{picture}");
            for (height, us) in heights.iter().zip(times) {
                assert!((height - at(us)).abs() < 0.06, "{class}: {heights:?}");
            }
        }
        assert_eq!(picture.matches("class=\"line ceiling\"").count(), 2);
        contains(
            &picture,
            &[
                "<title>14336x4096: time against vectors</title>",
                "NVFP4: 12.0 us with n = 1, 18.0 us with n = 4.",
                "ceiling: 10.0 us with n = 1, 10.0 us with n = 4.",
                ">19.0<",
                "prefers-color-scheme",
                "Test GPU &lt;1&gt;, driver 580.1.2, 2026-11-21",
            ],
        );
    }

    #[test]
    fn cublas_has_a_line_and_its_crossing() {
        let picture = draw(&testing::vectors()).unwrap();
        assert_eq!(picture.matches("class=\"line cublas\"").count(), 2);
        contains(
            &picture,
            &[
                "cuBLAS: 30.0 us with n = 1, 31.0 us with n = 16, 34.0 us with n = 128.",
                "cuBLAS 13.0.2: f16 weights and vectors",
                "Against f16 vectors: cuBLAS f16 is faster from n = 74 on",
                "<line class=\"crossing\"",
            ],
        );
        assert!(!draw(&document()).unwrap().contains("cuBLAS"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut document = document();
        document.cases.retain(|case| case.activation != "f16");
        let error = draw(&document).unwrap_err().to_string();
        contains(&error, &["14336x4096", "f16"]);
        let mut document = self::document();
        document.cases.retain(|case| case.n == 1);
        let error = draw(&document).unwrap_err().to_string();
        assert!(error.contains("only one number"), "{error}");
    }
}
