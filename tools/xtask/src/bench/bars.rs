//! Shares of the memory ceiling as bars: a drawing a shape, a bar a path.
//!
//! A drawing is as wide as a phone: beside each other on a wide screen, below each other on a narrow one. The name of a
//! bar stands above it, so that no label takes width from the plot.

use nvfp4_gemv_documents::document::{Case, Measured};
use nvfp4_gemv_documents::statistics::quantile;

use super::svg::{Anchor, PHONE, Svg, grid, path_class};
use super::view::{computed_by, label, percent, problem, shape, shares, time};

const WIDTH: f64 = PHONE;
/// Room for half of the first and the last number of the axis.
const LEFT: f64 = 14.0;
const RIGHT: f64 = 22.0;
/// The shape, then the numbers of the axis.
const TOP: f64 = 44.0;
const TEXT: f64 = 17.0;
/// The line of the kernel and of what the board said, where a document has it.
const SMALL: f64 = 15.0;
const BAR: f64 = 11.0;
const GAP: f64 = 7.0;

/// How far whiskers may reach beyond what the bars and the ceiling need, before they are cut: one noisy
/// round in twenty must not make all bars small.
const ROOM: f64 = 1.1;

/// A drawing for each of the cases, which have the same number of vectors, all with one axis.
pub(super) fn draw(cases: &[&Case]) -> Vec<String> {
    let medians = cases.iter().flat_map(|case| {
        let paths = case.paths.iter();
        paths.map(|path| quantile(&shares(case, path), 0.5))
    });
    let axis = grid(ROOM * medians.fold(1.0, f64::max));
    let with_bars = cases.iter().filter(|case| !case.paths.is_empty());
    with_bars.map(|case| one(case, axis)).collect()
}

fn one(case: &Case, (end, step): (f64, f64)) -> String {
    let height = TOP + case.paths.iter().map(room).sum::<f64>() + GAP;
    let mut svg = Svg::new(WIDTH, height);
    let x = |share: f64| LEFT + (WIDTH - LEFT - RIGHT) * share / end;
    svg.text((LEFT, 15.0), Anchor::Start, "label", &shape(case));
    for i in 0..=(end / step).round() as usize {
        let share = step * i as f64;
        svg.line((x(share), TOP), (x(share), height), "grid");
        let at = (x(share), TOP - 6.0);
        svg.text(at, Anchor::Middle, "small", &percent(share));
    }
    svg.line((x(1.0), TOP - 3.0), (x(1.0), height), "ceiling");
    let mut y = TOP;
    for path in &case.paths {
        bar(&mut svg, case, path, y, (end, &x));
        y += room(path);
    }
    svg.finish(&format!(
        "Share of the memory ceiling for {}, by path",
        shape(case)
    ))
}

/// Height that a path takes.
fn room(path: &Measured) -> f64 {
    let small = computed_by(path).map_or(0.0, |_| SMALL);
    TEXT + small + BAR + GAP
}

/// A path's name and numbers, its kernel with clock and power, and below them its bar. `end` is the last share that `x`
/// has room for.
fn bar(svg: &mut Svg, case: &Case, path: &Measured, y: f64, (end, x): (f64, &impl Fn(f64) -> f64)) {
    let shares = shares(case, path);
    let [low, middle, high] = [0.05, 0.5, 0.95].map(|q| quantile(&shares, q));
    let picked = match path.picked && path.mode == "isolated" {
        true => ", picked",
        false => "",
    };
    let name = label(path);
    let text = format!(
        "{name}: {}, {}{picked}",
        percent(middle),
        time(path.median_us)
    );
    svg.text((LEFT, y + TEXT - 4.0), Anchor::Start, "", &text);
    let mut top = y + TEXT;
    let kernel = computed_by(path);
    if let Some(text) = &kernel {
        svg.text((LEFT, top + SMALL - 5.0), Anchor::Start, "small", text);
        top += SMALL;
    }

    let title = format!(
        "{name}: {} ({} to {}) of the ceiling, {}, {:.0} GB/s, {}; {}",
        percent(middle),
        percent(low),
        percent(high),
        time(path.median_us),
        path.gb_per_s,
        problem(case),
        path.config,
    );
    let class = format!("fill {} {}", path_class(&path.path), path.mode);
    svg.rect((LEFT, top), (x(middle) - LEFT, BAR), &class, &title);

    // The whisker: what is beyond the axis is cut off, and its end said in numbers.
    let center = top + BAR / 2.0;
    let reach = |share: f64| x(share.min(end));
    svg.line((reach(low), center), (reach(high), center), "spread");
    for share in [low, high].into_iter().filter(|share| *share <= end) {
        svg.line((x(share), center - 4.0), (x(share), center + 4.0), "spread");
    }
    if high > end {
        let tip = x(end) + 8.0;
        svg.line((x(end), center), (tip, center), "spread");
        for side in [-4.0, 4.0] {
            svg.line((tip - 5.0, center + side), (tip, center), "spread");
        }
        let at = (WIDTH - 2.0, y + TEXT - 4.0);
        svg.text(at, Anchor::End, "small", &format!("to {}", percent(high)));
    }
}

#[cfg(test)]
mod tests {
    use nvfp4_gemv_documents::document::Document;

    use super::super::testing;
    use super::*;

    #[test]
    fn a_noisy_round_is_cut_and_said_and_does_not_set_the_axis() {
        let quiet = testing::document();
        let mut noisy = quiet.clone();
        let case = &mut noisy.cases[0];
        // Two rounds of nine: so many that the 95th percentile is among them.
        for round in 0..2 {
            case.paths[0].samples_us[round] = case.ceiling.samples_us[round] / 3.2;
        }
        let draw = |document: &Document| draw(&document.cases[..1].iter().collect::<Vec<_>>());
        let (quiet, noisy) = (draw(&quiet), draw(&noisy));
        assert_eq!((quiet.len(), noisy.len()), (1, 1));
        let axis = |svg: &str| {
            let numbers = svg
                .lines()
                .filter(|line| line.contains("text-anchor=\"middle\""));
            numbers.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(axis(&quiet[0]), axis(&noisy[0]));
        assert!(
            axis(&noisy[0]).last().unwrap().contains("125%"),
            "{noisy:?}"
        );
        assert!(!quiet[0].contains(">to "), "{quiet:?}");
        assert_eq!(noisy[0].matches(">to 320%<").count(), 1, "{noisy:?}");
    }

    #[test]
    fn a_bar_names_its_kernel_with_clock_and_power() {
        let mut document = testing::document();
        let path = &mut document.cases[0].paths[0];
        path.kernel = Some("ring".into());
        path.board.sm_mhz = Some(1980.0);
        path.board.watts = Some(313.667);
        let draw = |document: &Document| draw(&[&document.cases[0]]).remove(0);
        let drawing = draw(&document);
        assert!(
            drawing.contains(">kernel ring, 1980 MHz, 314 W<"),
            "{drawing}"
        );
        assert!(drawing.contains("Config { warps: 8 }"), "{drawing}");
        // Older documents do not say, nor does a CPU.
        assert!(!draw(&testing::document()).contains(">kernel "));
    }

    #[test]
    fn all_shapes_have_one_axis() {
        let document = testing::document();
        let mut fast = document.cases[0].clone();
        fast.paths[0].samples_us.fill(5.0);
        let drawings = draw(&[&document.cases[0], &fast]);
        assert_eq!(drawings.len(), 2);
        for drawing in drawings {
            assert!(drawing.contains(">250%<"), "{drawing}");
        }
    }
}
