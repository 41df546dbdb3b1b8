//! From lanes to a picture, which brings its own background, in a light and a dark form. It is as wide as a phone.

use std::fmt::Write as _;

use super::lanes::{Activity, Lane, Stretch};

const WIDTH: f64 = 400.0;
const LEFT: f64 = 16.0;
const RIGHT: f64 = 12.0;
/// Heights: of a lane with its label, of its bar, of the chart below it.
const LANE: f64 = 52.0;
const BAR: f64 = 20.0;
const CHART: f64 = 9.0;
const LINE: f64 = 16.0;
/// The width of an average character.
const CHARACTER: f64 = 6.1;
const CHARACTERS_OF_A_LINE: usize = 58;

/// Class, and what the legend says.
const LOOKS: [(Activity, &str, &str); 7] = [
    (Activity::Copies, "c", "issues copies"),
    (Activity::Loads, "l", "loads"),
    (Activity::Multiplies, "m", "multiplies"),
    (Activity::Stores, "s", "stores y"),
    (Activity::Other, "r", "other work"),
    (Activity::WaitsForCopies, "v", "waits for copies"),
    (Activity::WaitsForWarps, "w", "waits for warps"),
];

const CSS: &str = "\
text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}\
.h{font-size:14px;font-weight:600}.d{fill:#59636e}.t{text-anchor:middle}.i{fill:#fff}\
.b{fill:#fff;stroke:#d1d9e0}.x{stroke:#d1d9e0}\
.c{fill:#2472d6}.l{fill:#7a46d6}.m{fill:#cf5d14}.s{fill:#0f857b}.r{fill:#6e7781}\
.v{fill:#d3e5fb}.w{fill:#e6eaef}.f{fill:#7fb0ee}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.d{fill:#9198a1}.i{fill:#fff}\
.b{fill:#0d1117;stroke:#3d444d}.x{stroke:#3d444d}\
.c{fill:#4b8ef0}.l{fill:#8256d0}.m{fill:#bd561d}.s{fill:#1a7f78}.r{fill:#6b7580}\
.v{fill:#143055}.w{fill:#262c34}.f{fill:#2c5690}}";

/// Texts around the lanes.
#[derive(Clone, Debug)]
pub struct Texts {
    /// The heading.
    pub title: String,
    /// Text for those who do not see the picture.
    pub description: String,
    /// Paragraphs below the picture.
    pub caption: Vec<String>,
}

/// The picture of a run of so many steps. Stretches of multiplication get these numbers, lane by lane.
pub fn svg(lanes: &[Lane], numbers: &[Vec<u64>], steps: u64, texts: &Texts) -> String {
    let mut canvas = Canvas {
        out: String::new(),
        scale: (WIDTH - LEFT - RIGHT) / steps.max(1) as f64,
    };
    let top = canvas.legend(lanes);
    let most = lanes.iter().flat_map(|lane| &lane.in_flight);
    let most = most.map(|(_, bytes)| *bytes).max().unwrap_or(0);
    for (i, lane) in lanes.iter().enumerate() {
        let y = top + LANE * i as f64;
        let numbers = numbers.get(i).map_or(&[][..], Vec::as_slice);
        canvas.lane(lane, y, numbers);
        canvas.chart(lane, y + LINE + BAR + 2.0 + CHART, most);
    }
    let bottom = top + LANE * lanes.len() as f64;
    canvas.axis(bottom, steps);
    let mut y = bottom + 40.0;
    for line in texts.caption.iter().flat_map(|text| wrapped(text)) {
        canvas.text("d", LEFT, y, &line);
        y += LINE;
    }
    let height = y - 2.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {WIDTH} {height}\" \
         role=\"img\">\n<title>{title}</title>\n<desc>{}</desc>\n<style>{CSS}</style>\n\
         <rect class=\"b\" x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n\
         <text class=\"h\" x=\"{LEFT}\" y=\"24\">{title}</text>\n{}</svg>\n",
        WIDTH * 1.3,
        short(height * 1.3),
        texts.description,
        WIDTH - 1.0,
        height - 1.0,
        canvas.out,
        title = texts.title,
    )
}

struct Canvas {
    out: String,
    /// Pixels of a step.
    scale: f64,
}

impl Canvas {
    fn x(&self, step: u64) -> f64 {
        LEFT + step as f64 * self.scale
    }

    fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let (x, y) = (short(x), short(y));
        let _ = writeln!(
            self.out,
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>"
        );
    }

    fn rect(&mut self, class: &str, [x, y, width, height]: [f64; 4]) {
        let [x, y, width, height] = [x, y, width, height].map(short);
        let _ = writeln!(
            self.out,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>"
        );
    }

    /// Draws the meaning of the lanes' colours; returns the height at which the lanes begin.
    fn legend(&mut self, lanes: &[Lane]) -> f64 {
        let is_there = |activity: Activity| {
            let mut all = lanes.iter().flat_map(|lane| &lane.stretches);
            all.any(|stretch| stretch.activity == activity)
        };
        let looks = LOOKS.into_iter().filter(|look| is_there(look.0));
        let mut entries: Vec<_> = looks.map(|(_, class, name)| (class, name)).collect();
        if lanes.iter().any(|lane| !lane.in_flight.is_empty()) {
            entries.push(("f", "bytes on their way"));
        }
        let (mut x, mut y) = (LEFT, 38.0);
        for (class, name) in entries {
            let width = 17.0 + name.len() as f64 * CHARACTER;
            if x + width > WIDTH - RIGHT {
                (x, y) = (LEFT, y + 19.0);
            }
            self.rect(class, [x, y, 12.0, 12.0]);
            self.text("d", x + 17.0, y + 10.5, name);
            x += width + 9.0;
        }
        y + 22.0
    }

    fn lane(&mut self, lane: &Lane, y: f64, numbers: &[u64]) {
        self.text("d", LEFT, y + 11.0, &lane.label);
        let mut numbers = numbers.iter();
        for stretch in &lane.stretches {
            let (left, right) = (self.x(stretch.start), self.x(stretch.end));
            let width = (right - left).max(0.6);
            self.rect(class(stretch), [left, y + LINE, width, BAR]);
            if stretch.activity != Activity::Multiplies {
                continue;
            }
            let Some(number) = numbers.next() else {
                continue;
            };
            let text = number.to_string();
            if width > text.len() as f64 * 7.0 + 2.0 {
                self.text("i t", left + width / 2.0, y + LINE + 14.5, &text);
            }
        }
    }

    /// Bytes on their way, above a line at `y`.
    fn chart(&mut self, lane: &Lane, y: f64, most: u64) {
        let Some(first) = lane.in_flight.first() else {
            return;
        };
        let mut path = format!("M{} {}", short(self.x(first.0)), short(y));
        for (step, bytes) in &lane.in_flight {
            let height = CHART * *bytes as f64 / most.max(1) as f64;
            let _ = write!(path, "H{}V{}", short(self.x(*step)), short(y - height));
        }
        let _ = writeln!(self.out, "<path class=\"f\" d=\"{path}z\"/>");
    }

    fn axis(&mut self, y: f64, steps: u64) {
        // Distance of at most six marks: 1, 2 or 5 times a power of ten.
        let powers = (0..19).map(|power| 10u64.pow(power));
        let apart = powers
            .flat_map(|power| [power, power * 2, power.saturating_mul(5)])
            .find(|apart| steps / apart <= 5)
            .unwrap_or(steps);
        let _ = writeln!(
            self.out,
            "<path class=\"x\" d=\"M{LEFT} {y}H{}\"/>",
            WIDTH - RIGHT
        );
        let marks = (0..=steps).step_by(usize::try_from(apart).unwrap_or(usize::MAX));
        for at in marks {
            let x = short(self.x(at));
            let _ = writeln!(self.out, "<path class=\"x\" d=\"M{x} {y}v4\"/>");
            let (class, text) = match at {
                0 => ("d", "step 0".to_string()),
                _ => ("d t", at.to_string()),
            };
            self.text(class, self.x(at), y + 17.0, &text);
        }
    }
}

fn class(stretch: &Stretch) -> &'static str {
    let look = LOOKS.iter().find(|look| look.0 == stretch.activity);
    look.map_or("r", |look| look.1)
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last] = word.into();
        } else if lines[last].len() + 1 + word.len() <= CHARACTERS_OF_A_LINE {
            lines[last] += " ";
            lines[last] += word;
        } else {
            lines.push(word.into());
        }
    }
    lines
}

/// A tenth of a pixel is enough.
fn short(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}
