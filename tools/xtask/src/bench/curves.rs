//! Time against the number of vectors: a plot a shape, a line a path, a mark where one takes over.

use nvfp4_gemv_documents::document::Case;

use super::crossing::{Crossing, CublasFaster, crossings};
use super::svg::{Anchor, PHONE, Svg, grid, path_class};
use super::view::{distinct, isolated, shape, time};

const WIDTH: f64 = PHONE;
/// Height of the plot itself.
const PLOT: f64 = 176.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 22.0;
/// The shape and the unit; a line for each crossing comes between.
const TOP: f64 = 40.0;
const LINE: f64 = 16.0;
const BOTTOM: f64 = 34.0;

/// One plot of one shape's cases, with n rising; nothing where there is only one n.
pub(super) fn draw(cases: &[&Case]) -> Option<String> {
    let [first, .., last] = cases else {
        return None;
    };
    let crossings = crossings(cases);
    let cublas: Vec<(usize, f64)> = cases
        .iter()
        .filter_map(|case| Some((case.n, case.cublas.as_ref()?.times.median_us)))
        .collect();
    let faster = CublasFaster::of(cases);
    let lines = crossings.len() + usize::from(faster.text().is_some());
    let top = TOP + LINE * lines as f64;
    let height = top + PLOT + BOTTOM;
    let mut svg = Svg::new(WIDTH, height);
    let times = cases.iter().flat_map(|case| {
        let paths = isolated(case).map(|path| path.median_us);
        let cublas = case.cublas.iter().map(|cublas| cublas.times.median_us);
        paths.chain([case.ceiling.median_us]).chain(cublas)
    });
    let (end, step) = grid(times.fold(0.0, f64::max));
    // Doublings of n lie equally far apart.
    let (begin, span) = (
        (first.n as f64).log2(),
        (last.n as f64 / first.n as f64).log2(),
    );
    let x = |n: f64| LEFT + (WIDTH - LEFT - RIGHT) * (n.log2() - begin) / span;
    let y = |us: f64| height - BOTTOM - PLOT * us / end;

    svg.text((LEFT, 14.0), Anchor::Start, "label", &shape(first));
    for i in 0..=(end / step).round() as usize {
        let us = step * i as f64;
        svg.level((LEFT, WIDTH - RIGHT), y(us), &us.to_string());
    }
    svg.text((LEFT - 6.0, top - 10.0), Anchor::End, "small", "us");
    for case in cases {
        let at = (x(case.n as f64), height - BOTTOM + 16.0);
        // More have no room for the name.
        let text = match cases.len() <= 5 || case.n == first.n {
            true => format!("n = {}", case.n),
            false => case.n.to_string(),
        };
        svg.text(at, Anchor::Middle, "small", &text);
    }

    let ceiling: Vec<_> = cases
        .iter()
        .map(|case| (x(case.n as f64), y(case.ceiling.median_us)))
        .collect();
    svg.curve(&ceiling, "ceiling");
    let names = cases
        .iter()
        .flat_map(|case| isolated(case).map(|path| &path.path));
    for name in distinct(names) {
        let points: Vec<(usize, f64)> = cases
            .iter()
            .filter_map(|case| {
                let path = isolated(case).find(|path| path.path == *name)?;
                Some((case.n, path.median_us))
            })
            .collect();
        let class = path_class(name);
        let at = |&(n, us): &(usize, f64)| (x(n as f64), y(us));
        let line: Vec<_> = points.iter().map(at).collect();
        svg.curve(&line, &format!("line {class}"));
        for point in &points {
            let title = format!("{name}, n = {}: {}", point.0, time(point.1));
            svg.dot(at(point), &format!("fill {class}"), &title);
        }
    }
    let at = |&(n, us): &(usize, f64)| (x(n as f64), y(us));
    if !cublas.is_empty() {
        svg.curve(&cublas.iter().map(at).collect::<Vec<_>>(), "line other");
    }
    for point in &cublas {
        let title = format!("cuBLAS f16, n = {}: {}", point.0, time(point.1));
        svg.dot(at(point), "fill other", &title);
    }
    if let Some(text) = faster.text() {
        let line = 14.0 + LINE * lines as f64;
        svg.text((LEFT, line), Anchor::Start, "small", &text);
        if let CublasFaster::From { n, us } = faster {
            svg.line((x(n), top - 4.0), (x(n), height - BOTTOM), "crossing");
            svg.dot((x(n), y(us)), "crossing", &text);
        }
    }
    for (i, crossing) in crossings.iter().enumerate() {
        let Crossing { n, us, .. } = *crossing;
        svg.line((x(n), top - 4.0), (x(n), height - BOTTOM), "crossing");
        svg.dot((x(n), y(us)), "crossing", &crossing.text());
        let line = 14.0 + LINE * (i + 1) as f64;
        svg.text((LEFT, line), Anchor::Start, "small", &crossing.text());
    }
    Some(svg.finish(&format!("Time against vectors for {}", shape(first))))
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn cublas_has_a_line_and_a_crossing_where_it_took_turns() {
        let document = testing::vectors();
        let cases = document.cases.iter();
        let cases: Vec<&Case> = cases.filter(|case| case.activation == "f16").collect();
        let plot = draw(&cases).unwrap();
        assert_eq!(plot.matches("class=\"line other\"").count(), 1, "{plot}");
        assert!(plot.contains("cuBLAS f16, n = 16: 31.0 us"), "{plot}");
        assert!(plot.contains(">cuBLAS f16 is faster from n = 74 on</text>"));
        assert!(plot.contains("<line class=\"crossing\""), "{plot}");
        let document = testing::document();
        let cases: Vec<&Case> = document.cases[..2].iter().collect();
        assert!(!draw(&cases).unwrap().contains("cuBLAS"));
    }
}
