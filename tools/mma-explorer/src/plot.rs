//! Plots as SVG texts. Colours are the page's: classes `s0` to `s7` for series, `axis`, `mark` and `text`.

use std::fmt::Write;

use nvfp4_gemv_documents::table::escape;

const WIDTH: f64 = 860.0;
const LINE: f64 = 22.0;
/// Room for names on the left, and for numbers on the right.
const LEFT: f64 = 250.0;
const RIGHT: f64 = 70.0;

/// A bar, with marks across it.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// The bar's label.
    pub name: String,
    /// Which series it belongs to: its colour.
    pub series: usize,
    /// Length of the bar.
    pub value: f64,
    /// Values at which marks stand, each with the class that draws it and the text that it shows when pointed at.
    pub marks: Vec<(f64, &'static str, String)>,
}

/// Points that are joined by lines.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The line's label.
    pub name: String,
    /// X and Y, by X.
    pub points: Vec<(f64, f64)>,
}

/// A round number not below a maximum, and steps up to it.
fn scale(most: f64) -> (f64, Vec<f64>) {
    let most = if most.is_finite() && most > 0.0 {
        most
    } else {
        1.0
    };
    let power = 10f64.powf(most.log10().floor());
    let step = [0.1, 0.2, 0.25, 0.5, 1.0, 2.0]
        .into_iter()
        .map(|part| part * power)
        .find(|step| most / step <= 6.0)
        .unwrap_or(power);
    let steps = (most / step).ceil();
    let ticks = (0..=steps as u32).map(|i| f64::from(i) * step).collect();
    (steps * step, ticks)
}

fn start(height: f64, label: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n",
        escape(label)
    )
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let _ = writeln!(
        svg,
        "<text class=\"text\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
        escape(text)
    );
}

/// Bars below each other. `unit` is what values are multiples of.
pub fn bars(label: &str, bars: &[Bar], unit: f64) -> String {
    let values = bars.iter().flat_map(|bar| {
        let marks = bar.marks.iter().map(|mark| mark.0);
        marks.chain([bar.value])
    });
    let (end, ticks) = scale(values.fold(0.0, f64::max) / unit);
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (value / unit / end).clamp(0.0, 1.0);
    let bottom = LINE * (bars.len() as f64 + 1.0);
    let mut svg = start(bottom + 4.0, label);
    for tick in ticks {
        let at = x(tick * unit);
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"0\" y2=\"{:.1}\"/>",
            bottom - LINE
        );
        text(&mut svg, at, bottom - 5.0, "middle", &number(tick));
    }
    for (i, bar) in bars.iter().enumerate() {
        let top = LINE * i as f64;
        text(&mut svg, LEFT - 8.0, top + 15.0, "end", &bar.name);
        let _ = writeln!(
            svg,
            "<rect class=\"s{}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\"/>",
            bar.series % 8,
            top + 4.0,
            x(bar.value) - LEFT,
            LINE - 8.0
        );
        for (value, class, says) in &bar.marks {
            let at = x(*value);
            let _ = writeln!(
                svg,
                "<line class=\"mark {class}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"><title>{}</title></line>",
                top + 1.0,
                top + LINE - 1.0,
                escape(says)
            );
        }
        let after = bar.marks.iter().map(|mark| mark.0);
        let after = after.fold(bar.value, f64::max);
        let shown = number(bar.value / unit);
        text(&mut svg, x(after) + 6.0, top + 15.0, "start", &shown);
    }
    svg + "</svg>\n"
}

/// Lines over X, whose values are all named below.
pub fn lines(label: &str, lines: &[Line], unit: f64) -> String {
    const HEIGHT: f64 = 300.0;
    const MARGIN: f64 = 60.0;
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let (end, ticks) = scale(points().map(|point| point.1).fold(0.0, f64::max) / unit);
    let mut all: Vec<f64> = points().map(|point| point.0).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    // Equal distances: sizes usually double.
    let x = |value: f64| {
        let place = all.iter().position(|known| *known == value).unwrap_or(0) as f64;
        let last = (all.len().max(2) - 1) as f64;
        MARGIN + (WIDTH - 2.0 * MARGIN) * place / last
    };
    let y = |value: f64| HEIGHT - 30.0 - (HEIGHT - 45.0) * (value / unit / end).clamp(0.0, 1.0);
    let mut svg = start(HEIGHT + LINE * lines.len().div_ceil(2) as f64, label);
    for tick in ticks {
        let at = y(tick * unit);
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{MARGIN}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
            WIDTH - MARGIN
        );
        text(&mut svg, MARGIN - 8.0, at + 4.0, "end", &number(tick));
    }
    for value in &all {
        text(
            &mut svg,
            x(*value),
            HEIGHT - 10.0,
            "middle",
            &number(*value),
        );
    }
    for (i, line) in lines.iter().enumerate() {
        let series = i % 8;
        let joined: Vec<String> = line
            .points
            .iter()
            .map(|(a, b)| format!("{:.1},{:.1}", x(*a), y(*b)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline class=\"line l{series}\" points=\"{}\"/>",
            joined.join(" ")
        );
        for (a, b) in &line.points {
            let _ = writeln!(
                svg,
                "<circle class=\"s{series}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{}: {}</title></circle>",
                x(*a),
                y(*b),
                escape(&line.name),
                number(b / unit)
            );
        }
        let (column, row) = ((i % 2) as f64, (i / 2) as f64);
        let (left, top) = (MARGIN + column * 380.0, HEIGHT + LINE * row);
        let _ = writeln!(
            svg,
            "<rect class=\"s{series}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" rx=\"2\"/>",
            top + 3.0
        );
        text(&mut svg, left + 18.0, top + 14.0, "start", &line.name);
    }
    svg + "</svg>\n"
}

/// Whole where that is exact enough.
fn number(value: f64) -> String {
    if value >= 20.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        assert_eq!(scale(989.5).0, 1000.0);
        assert_eq!(scale(1979.0).0, 2000.0);
        assert_eq!(scale(0.0).0, 1.0);
        assert_eq!(scale(f64::NAN).0, 1.0);
        let (end, ticks) = scale(37.0);
        assert_eq!((end, ticks.last()), (40.0, Some(&40.0)));
    }

    #[test]
    fn bars_have_their_lengths_and_names_are_text() {
        let bar = |value: f64| Bar {
            name: "<b>&".into(),
            series: 1,
            value,
            marks: vec![(1000.0, "peak", "a \"mark\"".into())],
        };
        let svg = bars("x", &[bar(1000.0), bar(500.0)], 1.0);
        let widths: Vec<f64> = svg
            .split("width=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(widths, [WIDTH - LEFT - RIGHT, (WIDTH - LEFT - RIGHT) / 2.0]);
        assert!(svg.contains("&lt;b&gt;&amp;") && !svg.contains("<b>"));
        assert!(svg.contains("a &quot;mark&quot;"));
    }

    #[test]
    fn lines_rise_with_their_values() {
        let line = Line {
            name: "one".into(),
            points: vec![(1024.0, 100.0), (2048.0, 200.0)],
        };
        let svg = lines("x", &[line], 1.0);
        let points = svg.split("points=\"").nth(1);
        let points = points.and_then(|rest| rest.split('"').next());
        assert_eq!(points, Some("60.0,142.5 800.0,15.0"));
        assert!(svg.contains(">1024<") && svg.contains(">2048<") && svg.contains(">one<"));
        // Nothing to draw is no crash.
        assert!(lines("x", &[], 1.0).ends_with("</svg>\n"));
        assert!(bars("x", &[], 1.0).ends_with("</svg>\n"));
    }
}
