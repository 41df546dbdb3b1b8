//! From rows to SVG.

use std::fmt::Write as _;

use super::rows::{Bar, End, Look, Picture};
use super::style::{CSS, LOOKS, class, white_text};

const LEFT: f64 = 128.0;
const RIGHT: f64 = 16.0;
/// Heights: of a bar, of a line with the gap below it, of a heading, of the gap below a row.
const BAR: f64 = 15.0;
const LINE: f64 = 17.0;
const HEADING: f64 = 24.0;
const GAP: f64 = 3.0;
/// Width of an average character.
const CHARACTER: f64 = 6.0;

/// Signs that the legend explains.
#[derive(Clone, Copy)]
enum Sign {
    Look(&'static str),
    Phases,
    Mark,
    Arrow,
}

impl Sign {
    fn width(self) -> f64 {
        match self {
            Sign::Phases => 26.0,
            _ => 12.0,
        }
    }
}

/// An entry of the legend, and its place.
struct Item {
    sign: Sign,
    name: &'static str,
    x: f64,
    y: f64,
}

/// The legend of the picture's signs, in as many lines as it takes; and how far the lines reach.
fn legend(picture: &Picture, width: f64) -> (Vec<Item>, f64) {
    let any = |f: &dyn Fn(&Bar) -> bool| picture.rows().any(|r| r.bars.iter().any(f));
    let mut entries = Vec::new();
    for (look, class, name, _) in LOOKS {
        if look == Look::EvenPhase && any(&|b| b.look == Look::OddPhase) {
            entries.push((Sign::Phases, "mbarrier phase, even and odd"));
        } else if any(&|b| b.look == look) {
            entries.push((Sign::Look(class), name));
        }
    }
    if any(&|b| !b.marks.is_empty()) {
        entries.push((Sign::Mark, "one of several completes"));
    }
    if !picture.arrows.is_empty() {
        entries.push((Sign::Arrow, "completes a phase, for a waiter"));
    }
    let (mut x, mut y, mut items) = (16.0, 37.0, Vec::new());
    for (sign, name) in entries {
        let size = sign.width() + 5.0 + name.chars().count() as f64 * 6.0;
        if x + size > width - RIGHT {
            (x, y) = (16.0, y + 18.0);
        }
        items.push(Item { sign, name, x, y });
        x += size + 14.0;
    }
    (items, y + 29.0)
}

struct Canvas {
    out: String,
    scale: f64,
    from: u64,
    to: u64,
}

pub(super) fn render(
    picture: &Picture,
    (from, to): (u64, u64),
    width: u32,
    title: &str,
    note: Option<&str>,
) -> String {
    let width = f64::from(width);
    let rows: usize = picture.rows().count();
    let lines: usize = picture.rows().map(|r| r.lines).sum();
    let body = picture.sections.len() as f64 * HEADING + lines as f64 * LINE + rows as f64 * GAP;
    let (items, top) = legend(picture, width);
    let height = top + body + 42.0;
    let mut c = Canvas {
        out: String::new(),
        scale: (width - LEFT - RIGHT) / (to - from) as f64,
        from,
        to,
    };
    let _ = write!(
        c.out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>{}</title>\n<style>{CSS}</style>\n\
         <rect class=\"b\" x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n",
        escape(title),
        width - 1.0,
        height - 1.0
    );
    c.text(16.0, 24.0, "h", title);
    if let Some(n) = note {
        c.text(width - RIGHT, 24.0, "d a", n);
    }
    c.legend(&items);
    c.axis(top, top + body, width);
    let tops = c.body(picture, top, width);
    for (a, b) in &picture.arrows {
        c.arrow(&tops, *a, *b);
    }
    c.out += "</svg>\n";
    c.out
}

impl Canvas {
    fn x(&self, step: u64) -> f64 {
        let step = step.clamp(self.from, self.to);
        LEFT + (step - self.from) as f64 * self.scale
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let class = match class {
            "" => String::new(),
            c => format!(" class=\"{c}\""),
        };
        let _ = writeln!(
            self.out,
            "<text{class} x=\"{}\" y=\"{}\">{}</text>",
            short(x),
            short(y),
            escape(text)
        );
    }

    fn rect(&mut self, class: &str, [x, y, w, h]: [f64; 4]) {
        let _ = writeln!(
            self.out,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
            short(x),
            short(y),
            short(w),
            short(h)
        );
    }

    fn legend(&mut self, items: &[Item]) {
        for i in items {
            let (x, y) = (i.x, i.y);
            let boxes = |c: &mut Self, classes: &[&str]| {
                for (n, class) in classes.iter().enumerate() {
                    c.rect(class, [x + 14.0 * n as f64, y, 12.0, 12.0]);
                }
            };
            match i.sign {
                Sign::Look(class) => boxes(self, &[class]),
                Sign::Phases => boxes(self, &["e", "o"]),
                Sign::Mark => {
                    boxes(self, &["c"]);
                    let path = format!("M{} {}v12", short(x + 6.0), short(y));
                    let _ = writeln!(self.out, "<path class=\"n\" d=\"{path}\"/>");
                }
                Sign::Arrow => {
                    let (x, y) = (short(x), short(y + 6.0));
                    let _ = writeln!(
                        self.out,
                        "<path class=\"f\" d=\"M{x} {y}h10\"/>\
                         <path class=\"p\" d=\"M{x} {y}m9-3l5 3-5 3z\"/>"
                    );
                }
            }
            self.text(x + i.sign.width() + 5.0, y + 9.5, "", i.name);
        }
    }

    fn axis(&mut self, top: f64, bottom: f64, width: f64) {
        let span = self.to - self.from;
        // At most twelve marks, at 1, 2 or 5 times a power of ten.
        let powers = (0..19).map(|p| 10u64.pow(p));
        let step = powers
            .flat_map(|p| [p, p * 2, p.saturating_mul(5)])
            .find(|step| span / step <= 12)
            .unwrap_or(span);
        let mut path = String::new();
        let first = self.from.checked_next_multiple_of(step);
        let marks = std::iter::successors(first, |at| at.checked_add(step));
        let last = self.to;
        for at in marks.take_while(|at| *at <= last) {
            let x = self.x(at);
            let _ = write!(path, "M{} {}V{}", short(x), short(top), short(bottom + 4.0));
            self.text(x, bottom + 15.0, "d t", &at.to_string());
        }
        let _ = writeln!(self.out, "<path class=\"x\" d=\"{path}\"/>");
        let middle = LEFT + (width - LEFT - RIGHT) / 2.0;
        let axis = "steps of the simulator: the order of events, not their duration on hardware";
        self.text(middle, bottom + 31.0, "d t", axis);
    }

    /// Draws all rows; returns their tops.
    fn body(&mut self, picture: &Picture, top: f64, width: f64) -> Vec<f64> {
        let mut y = top;
        let mut tops = Vec::new();
        for section in &picture.sections {
            self.text(16.0, y + 16.0, "g", &section.heading);
            y += HEADING;
            for row in &section.rows {
                let height = row.lines as f64 * LINE;
                if tops.len() % 2 == 0 {
                    self.rect("z", [8.0, y - 1.0, width - 16.0, height + 1.0]);
                }
                self.text(LEFT - 8.0, y + 11.0, "a", &row.label);
                tops.push(y);
                for b in &row.bars {
                    self.bar(b, y + b.line as f64 * LINE);
                }
                y += height + GAP;
            }
        }
        tops
    }

    fn bar(&mut self, b: &Bar, y: f64) {
        let (left, right) = (self.x(b.start), self.x(b.end));
        let w = (right - left).max(1.0);
        self.rect(class(b.look), [left, y, w, BAR]);
        let marks: String = b
            .marks
            .iter()
            .map(|m| self.x(*m))
            .filter(|m| *m < right - 1.0)
            .map(|m| format!("M{} {}v{BAR}", short(m), short(y)))
            .collect();
        if !marks.is_empty() {
            let _ = writeln!(self.out, "<path class=\"n\" d=\"{marks}\"/>");
        }
        // Text stands to the left of the marks.
        let end = b.marks.iter().map(|m| self.x(*m)).fold(right, f64::min);
        let fits = |t: &&String| t.chars().count() as f64 * CHARACTER + 6.0 <= end - left;
        if let Some(t) = b.texts.iter().filter(|t| !t.is_empty()).find(fits) {
            let class = if white_text(b.look) { "i" } else { "" };
            self.text(left + 4.0, y + 11.0, class, t);
        }
    }

    /// Down or up from the completion, then to the waiter.
    fn arrow(&mut self, tops: &[f64], from: End, to: End) {
        let (Some(a), Some(b)) = (tops.get(from.0), tops.get(to.0)) else {
            return;
        };
        let (x1, x2) = (self.x(from.2), self.x(to.2));
        let (top1, top2) = (a + from.1 as f64 * LINE, b + to.1 as f64 * LINE);
        let up = top2 < top1;
        let y1 = if up { top1 } else { top1 + BAR };
        let (y2, tip) = if up {
            (top2 + BAR + 4.0, -4.0)
        } else {
            (top2 - 4.0, 4.0)
        };
        let path = match x2 - x1 < 1.5 {
            true => format!("M{} {}V{}", short(x2), short(y1), short(y2)),
            false => format!("M{} {}V{}H{}", short(x1), short(y1), short(y2), short(x2)),
        };
        let _ = writeln!(
            self.out,
            "<path class=\"f\" d=\"{path}\"/><path class=\"p\" d=\"M{} {}h5l-2.5 {}z\"/>",
            short(x2 - 2.5),
            short(y2),
            short(tip)
        );
    }
}

/// A tenth of a pixel is enough.
fn short(v: f64) -> String {
    let s = format!("{v:.1}");
    s.strip_suffix(".0").map_or(s.clone(), str::to_string)
}

fn escape(s: &str) -> String {
    s.chars()
        .map(|c| match c {
            '&' => "&amp;".to_string(),
            '<' => "&lt;".to_string(),
            '>' => "&gt;".to_string(),
            '"' => "&quot;".to_string(),
            // Not allowed in XML, not even as a reference.
            c if c.is_control() => " ".to_string(),
            c => c.to_string(),
        })
        .collect()
}
