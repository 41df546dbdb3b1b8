//! The few shapes that the plots need. They are written here because plotting crates bring fonts and scripts or draw
//! pixels. A page must stand alone and follow the reader's light or dark colours, which shapes with classes do.

use std::fmt::Write;

use nvfp4_gemv_documents::table::escape;

/// How wide a drawing may be to be shown at its size on a phone of 420 pixels, whose page has margins. Text
/// of a wider one shrinks with it.
pub(crate) const PHONE: f64 = 384.0;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing; all lengths in pixels.
#[derive(Debug)]
pub(crate) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self {
            width,
            height,
            body: String::new(),
        }
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
        ));
    }

    /// `title` shows when the reader points at it.
    pub(crate) fn rect(&mut self, at: (f64, f64), size: (f64, f64), class: &str, title: &str) {
        let ((x, y), (w, h)) = (at, (size.0.max(0.0), size.1.max(0.0)));
        let title = escape(title);
        self.push(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\">\
             <title>{title}</title></rect>\n"
        ));
    }

    pub(crate) fn dot(&mut self, at: (f64, f64), class: &str, title: &str) {
        let ((x, y), title) = (at, escape(title));
        self.push(format_args!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{title}</title>\
             </circle>\n"
        ));
    }

    pub(crate) fn curve(&mut self, points: &[(f64, f64)], class: &str) {
        let points = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}"));
        let points: Vec<String> = points.collect();
        self.push(format_args!(
            "<polyline class=\"{class}\" points=\"{}\"/>\n",
            points.join(" ")
        ));
    }

    pub(crate) fn text(&mut self, at: (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let ((x, y), text) = (at, escape(text));
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n"
        ));
    }

    /// A horizontal line of the grid, and what it stands for on its left.
    pub(crate) fn level(&mut self, (left, right): (f64, f64), y: f64, number: &str) {
        self.line((left, y), (right, y), "grid");
        self.text((left - 6.0, y + 3.0), Anchor::End, "small", number);
    }

    fn push(&mut self, shape: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.body.write_fmt(shape);
    }

    /// The drawing, with what it shows for those who cannot see it.
    pub(crate) fn finish(self, label: &str) -> String {
        let Self {
            width,
            height,
            body,
        } = self;
        format!(
            "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\">\n{body}</svg>\n",
            escape(label)
        )
    }

    /// The drawing as a file that stands alone, on paper of its own: a page's colours do not reach into it. Pages
    /// show it larger than it is drawn where they have room.
    pub(crate) fn finish_file(self, title: &str, description: &str, style: &str) -> String {
        const SCALE: f64 = 1.25;
        let Self {
            width,
            height,
            body,
        } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{:.0}\" height=\"{:.0}\">\n\
             <title>{}</title>\n<desc>{}</desc>\n<style>\n{style}</style>\n\
             <rect class=\"paper\" x=\"0.5\" y=\"0.5\" width=\"{:.0}\" height=\"{:.0}\" rx=\"6\"/>\n\
             {body}</svg>\n",
            SCALE * width,
            SCALE * height,
            escape(title),
            escape(description),
            width.round() - 1.0,
            height.round() - 1.0,
        )
    }
}

/// The class of a path's colour; another for what is no path.
pub(crate) fn path_class(path: &str) -> &'static str {
    match path {
        "cpu" => "cpu",
        "cuda-core" => "cuda-core",
        "tensor-core" => "tensor-core",
        _ => "other",
    }
}

/// A round number of at least `value`, and how far apart the lines of a grid to it are: four or five.
pub(crate) fn grid(value: f64) -> (f64, f64) {
    let rough = (value / 5.0).max(1e-9);
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|nice| nice * power)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(10.0 * power);
    ((value / step).ceil() * step, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::contains;

    #[test]
    fn grids_are_round() {
        for (value, end, step) in [(0.97, 1.0, 0.2), (43.7, 50.0, 10.0), (112.0, 125.0, 25.0)] {
            let got = grid(value);
            assert!(
                (got.0 - end).abs() < 1e-9 && (got.1 - step).abs() < 1e-9,
                "{got:?}"
            );
        }
    }

    #[test]
    fn nothing_escapes_its_element() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.text((0.0, 0.0), Anchor::Middle, "x", "<b>");
        svg.dot((0.0, 0.0), "x", "a & b");
        let text = svg.finish("\"quoted\"");
        contains(&text, &["&lt;b&gt;", "a &amp; b"]);
        assert!(text.contains("aria-label=\"&quot;quoted&quot;\""), "{text}");
        let text = Svg::new(10.0, 10.0).finish_file("<b>", "a & b", "");
        contains(
            &text,
            &["<title>&lt;b&gt;</title>", "<desc>a &amp; b</desc>"],
        );
    }
}
