//! Time against the number of vectors: a plot a shape, a line a path, a mark where one takes over.

use super::crossing::{Crossing, crossings};
use super::document::Case;
use super::svg::{Anchor, Svg, grid, path_class};
use super::view::{distinct, isolated, shape, time};

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 34.0;

/// One plot of one shape's cases, with n rising; nothing where there is only one n.
pub(super) fn draw(cases: &[&Case]) -> Option<String> {
    let [first, .., last] = cases else {
        return None;
    };
    let mut svg = Svg::new(WIDTH, HEIGHT);
    let times = cases.iter().flat_map(|case| {
        let paths = isolated(case).map(|path| path.median_us);
        paths.chain([case.ceiling.median_us])
    });
    let (end, step) = grid(times.fold(0.0, f64::max));
    // Doublings of n lie equally far apart.
    let (begin, span) = (
        (first.n as f64).log2(),
        (last.n as f64 / first.n as f64).log2(),
    );
    let x = |n: f64| LEFT + (WIDTH - LEFT - RIGHT) * (n.log2() - begin) / span;
    let y = |us: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * us / end;

    svg.text((LEFT, 14.0), Anchor::Start, "label", &shape(first));
    for i in 0..=(end / step).round() as usize {
        let us = step * i as f64;
        svg.line((LEFT, y(us)), (WIDTH - RIGHT, y(us)), "grid");
        svg.text(
            (LEFT - 6.0, y(us) + 3.0),
            Anchor::End,
            "small",
            &format!("{us}"),
        );
    }
    svg.text((LEFT - 6.0, TOP - 10.0), Anchor::End, "small", "us");
    for case in cases {
        let at = (x(case.n as f64), HEIGHT - BOTTOM + 16.0);
        svg.text(at, Anchor::Middle, "small", &format!("n = {}", case.n));
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
    for crossing in crossings(cases) {
        let Crossing { n, us, .. } = crossing;
        svg.line((x(n), TOP - 8.0), (x(n), HEIGHT - BOTTOM), "crossing");
        svg.dot((x(n), y(us)), "crossing", &crossing.text());
        let middle = (x(n)).clamp(LEFT + 80.0, WIDTH - 130.0);
        svg.text(
            (middle, TOP - 11.0),
            Anchor::Middle,
            "small",
            &crossing.text(),
        );
    }
    Some(svg.finish(&format!("Time against vectors for {}", shape(first))))
}
