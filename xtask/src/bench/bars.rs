//! Shares of the memory ceiling as bars: a group a shape, a bar a path.

use super::document::Case;
use super::statistics::quantile;
use super::svg::{Anchor, Svg, grid, path_class};
use super::view::{label, percent, problem, shape, shares, time};

const LABELS: f64 = 130.0;
const PLOT: f64 = 470.0;
const VALUES: f64 = 250.0;
const TOP: f64 = 22.0;
const BAR: f64 = 13.0;
const GAP: f64 = 3.0;
const GROUP_GAP: f64 = 10.0;

/// One plot for cases with the same number of vectors.
pub(super) fn draw(cases: &[&Case]) -> String {
    let bars: usize = cases.iter().map(|case| case.paths.len()).sum();
    let height = TOP + bars as f64 * (BAR + GAP) + cases.len() as f64 * GROUP_GAP + GROUP_GAP;
    let mut svg = Svg::new(LABELS + PLOT + VALUES, height);
    let all = cases
        .iter()
        .flat_map(|case| case.paths.iter().map(|path| (*case, path)));
    let most = all.fold(1.0f64, |most, (case, path)| {
        most.max(quantile(&shares(case, path), 0.95))
    });
    let (end, step) = grid(most);
    let x = |share: f64| LABELS + PLOT * share / end;
    for i in 0..=(end / step).round() as usize {
        let share = step * i as f64;
        svg.line((x(share), TOP), (x(share), height), "grid");
        svg.text(
            (x(share), TOP - 7.0),
            Anchor::Middle,
            "small",
            &percent(share),
        );
    }
    svg.line((x(1.0), TOP - 3.0), (x(1.0), height), "ceiling");

    let mut y = TOP + GROUP_GAP;
    for case in cases {
        let group = case.paths.len() as f64 * (BAR + GAP);
        svg.text(
            (LABELS - 8.0, y + group / 2.0 + 3.0),
            Anchor::End,
            "label",
            &shape(case),
        );
        for path in &case.paths {
            let shares = shares(case, path);
            let [low, middle, high] = [0.05, 0.5, 0.95].map(|q| quantile(&shares, q));
            let title = format!(
                "{}: {} ({} to {}) of the ceiling, {}, {:.0} GB/s, {}",
                label(path),
                percent(middle),
                percent(low),
                percent(high),
                time(path.median_us),
                path.gb_per_s,
                problem(case),
            );
            let class = format!("fill {} {}", path_class(&path.path), path.mode);
            svg.rect((LABELS, y), (x(middle) - LABELS, BAR), &class, &title);
            let center = y + BAR / 2.0;
            svg.line((x(low), center), (x(high), center), "spread");
            for end in [low, high] {
                svg.line((x(end), center - 3.0), (x(end), center + 3.0), "spread");
            }
            let mark = if path.picked && path.mode == "isolated" {
                ", picked"
            } else {
                ""
            };
            svg.text(
                (LABELS + PLOT + 8.0, y + BAR - 3.0),
                Anchor::Start,
                "small",
                &format!(
                    "{}: {}, {}{mark}",
                    label(path),
                    percent(middle),
                    time(path.median_us)
                ),
            );
            y += BAR + GAP;
        }
        y += GROUP_GAP;
    }
    svg.finish("Share of the memory ceiling for each shape and path")
}
