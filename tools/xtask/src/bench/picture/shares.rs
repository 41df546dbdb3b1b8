//! One vector on every shape: this crate, the ceiling and other libraries.
//!
//! Layers differ by a factor of ten in time. So a bar's length is the time in multiples of its shape's ceiling, and the
//! ceilings of all shapes lie below each other. The time itself stands behind the bar.

use anyhow::{Result, bail};
use nvfp4_gemv_documents::document::{Case, Document};

use super::super::svg::{Anchor, Svg, grid};
use super::super::view::{percent, shape, time};
use super::others::Others;
use super::{LAYOUT, MARGIN, WIDTH, check_is_real, day, finish, is_plain, measured_on, picked};

/// Left end of the bars: their names come before.
const LEFT: f64 = 95.0;
/// Width behind the longest bar, for its time.
const RIGHT: f64 = 98.0;
/// The title, two lines that say how to read it, and the numbers of the axis.
const TOP: f64 = 84.0;
const HEADING: f64 = 17.0;
const BAR: f64 = 11.0;
/// Distance from one bar's top to the next.
const STEP: f64 = 15.0;
const GAP: f64 = 8.0;
const LINE: f64 = 15.0;

/// Weights of other libraries: as a document names them, and as the picture does.
const LIBRARIES: [(&str, &str); 2] = [("fp8", "FP8 cuBLAS"), ("bf16", "bf16 cuBLAS")];

/// A bar of a shape.
struct Bar {
    class: &'static str,
    name: &'static str,
    /// The time; nothing where the library cannot compute the layer.
    us: Option<f64>,
    /// Share of the ceiling, of this crate's bars.
    share: Option<f64>,
}

impl Bar {
    /// The time, and the share where there is one.
    fn text(&self) -> String {
        match (self.us, self.share) {
            (Some(us), Some(share)) => format!("{}, {}", time(us), percent(share)),
            (Some(us), None) => time(us),
            (None, _) => "not available".into(),
        }
    }
}

/// A shape with its bars.
struct Group<'a> {
    case: &'a Case,
    bars: Vec<Bar>,
}

impl Group<'_> {
    fn ceiling_us(&self) -> f64 {
        self.case.ceiling.median_us
    }

    /// The group's text for those who cannot see the picture.
    fn text(&self) -> String {
        let bars = self.bars.iter();
        let bars = bars.map(|bar| format!(", {} {}", bar.name, bar.text()));
        format!(
            "{}: ceiling {}{}.",
            shape(self.case),
            time(self.ceiling_us()),
            bars.collect::<String>()
        )
    }
}

pub(super) fn draw(document: &Document, others: Option<&Others>) -> Result<String> {
    check_is_real(document)?;
    if let Some(others) = others
        && others.device.name != document.device.name
    {
        bail!(
            "other libraries were measured on {}, this crate on {}",
            others.device.name,
            document.device.name
        );
    }
    let groups = groups(document, others)?;
    let longest = groups.iter().flat_map(|group| {
        let times = group.bars.iter().filter_map(|bar| bar.us);
        times.map(|us| us / group.ceiling_us())
    });
    let longest = longest.fold(1.0, f64::max);
    let caption = caption(document, others);

    let bars: usize = groups.iter().map(|group| group.bars.len()).sum();
    let end = TOP + groups.len() as f64 * (HEADING + GAP) + bars as f64 * STEP;
    let height = end + LINE * caption.len() as f64 + 8.0;
    let mut svg = Svg::new(WIDTH, height);
    let x = |multiple: f64| LEFT + (WIDTH - LEFT - RIGHT) * multiple / longest;

    let title = "Time of a layer's call, one vector";
    svg.text((MARGIN, 22.0), Anchor::Start, "label", title);
    let how = "1x, the mark: the ceiling, the time to only read the";
    svg.text((MARGIN, 41.0), Anchor::Start, "small", how);
    let how = "NVFP4 weights. Percent: the share of the ceiling.";
    svg.text((MARGIN, 55.0), Anchor::Start, "small", how);
    let (_, step) = grid(longest);
    for i in 0..=(longest / step).floor() as usize {
        let multiple = step * i as f64;
        svg.line((x(multiple), TOP - 5.0), (x(multiple), end - GAP), "grid");
        let at = (x(multiple), TOP - 10.0);
        svg.text(at, Anchor::Middle, "small", &format!("{multiple}x"));
    }
    let mut y = TOP;
    for group in &groups {
        y = draw_group(&mut svg, group, y, &x);
    }
    for (i, line) in caption.iter().enumerate() {
        let at = (MARGIN, end + LINE * (i as f64 + 0.6));
        svg.text(at, Anchor::Start, "small", line);
    }
    let shapes: Vec<String> = groups.iter().map(Group::text).collect();
    let description = format!(
        "The ceiling is the time to only read the NVFP4 weights. {} {}.",
        shapes.join(" "),
        caption.join(". ")
    );
    Ok(finish(svg, title, &description))
}

/// The shapes in the order of the document.
fn groups<'a>(document: &'a Document, others: Option<&Others>) -> Result<Vec<Group<'a>>> {
    let wanted = |case: &&Case| case.n == 1 && case.activation == "nvfp4" && is_plain(case);
    let cases: Vec<&Case> = document.cases.iter().filter(wanted).collect();
    if cases.is_empty() {
        bail!("no case has one NVFP4 vector and {LAYOUT} scales");
    }
    // A library that computed nothing at all has no bars.
    let libraries = LIBRARIES.iter().filter_map(|&(weights, name)| {
        let others = others?;
        let any = cases
            .iter()
            .any(|case| others.best_us(case, weights).is_some());
        any.then_some((others, weights, name))
    });
    let libraries: Vec<_> = libraries.collect();
    let group = |case| {
        let ours = picked(case)?;
        let mut bars = vec![Bar {
            class: "nvfp4",
            name: "nvfp4-gemv",
            us: Some(ours.median_us),
            share: Some(ours.share_of_ceiling),
        }];
        bars.extend(libraries.iter().map(|&(others, weights, name)| Bar {
            class: weights,
            name,
            us: others.best_us(case, weights),
            share: None,
        }));
        Ok(Group { case, bars })
    };
    cases.into_iter().map(group).collect()
}

/// A shape from `y` on; where the next one begins.
fn draw_group(svg: &mut Svg, group: &Group, y: f64, x: &impl Fn(f64) -> f64) -> f64 {
    let ceiling = group.ceiling_us();
    let heading = (MARGIN, y + 11.0);
    svg.text(heading, Anchor::Start, "label", &shape(group.case));
    let text = format!("ceiling {}", time(ceiling));
    let at = (WIDTH - MARGIN, y + 11.0);
    svg.text(at, Anchor::End, "small", &text);

    let top = y + HEADING;
    for (i, bar) in group.bars.iter().enumerate() {
        let y = top + STEP * i as f64;
        let base = y + BAR - 1.0;
        svg.text((MARGIN, base), Anchor::Start, "", bar.name);
        let end = bar.us.map_or(LEFT, |us| x(us / ceiling));
        let title = format!("{}: {}", bar.name, bar.text());
        let class = format!("fill {}", bar.class);
        svg.rect((LEFT, y), (end - LEFT, BAR), &class, &title);
        // The mark must not cross the text where there is no bar.
        let behind = if bar.us.is_some() { end } else { x(1.0) };
        svg.text((behind + 5.0, base), Anchor::Start, "", &bar.text());
    }
    let bottom = top + STEP * group.bars.len() as f64;
    svg.line((x(1.0), top - 2.0), (x(1.0), bottom - 2.0), "mark");
    bottom + GAP
}

/// Who measured what, below the bars.
fn caption(document: &Document, others: Option<&Others>) -> Vec<String> {
    let mut lines = vec![
        measured_on(document),
        "nvfp4-gemv: NVFP4 weights and vectors".to_owned(),
    ];
    lines.extend(others.map(|others| {
        let day = day(&others.date_utc);
        format!("cuBLAS: through PyTorch {}, {day}", others.torch)
    }));
    lines.push("Medians of rounds; weights from memory, not a cache".to_owned());
    lines.push("Shapes: rows x elements of a row x batches".to_owned());
    lines
}

#[cfg(test)]
mod tests {
    use super::super::super::testing;
    use super::super::others::tests::others;
    use super::*;
    use crate::testing::contains;

    /// 12 us of this crate above a ceiling of 10 us.
    fn document() -> Document {
        let mut document = testing::document();
        for case in &mut document.cases {
            case.layout = LAYOUT.into();
        }
        document
    }

    #[test]
    fn bars_are_multiples_of_the_ceiling() {
        let picture = draw(&document(), Some(&others())).unwrap();
        let widths: Vec<f64> = picture
            .lines()
            .filter(|line| line.contains("class=\"fill "))
            .map(|line| {
                let (_, rest) = line.split_once("width=\"").unwrap();
                rest.split_once('"').unwrap().0.parse().unwrap()
            })
            .collect();
        // 12 and 40 us; the longest bar reaches as far as there is room.
        let room = WIDTH - LEFT - RIGHT;
        let [ours, bf16] = widths[..] else {
            panic!("two bars: {widths:?}");
        };
        assert!((ours - room * 12.0 / 40.0).abs() < 0.06, "{ours}");
        assert!((bf16 - room).abs() < 0.06, "{bf16}");
        let mark = LEFT + room * 10.0 / 40.0;
        contains(
            &picture,
            &[
                &format!("class=\"mark\" x1=\"{mark:.1}\""),
                ">12.0 us, 83%<",
                ">40.0 us<",
                ">4x<",
                ">ceiling 10.0 us<",
                "PyTorch 2.9.0, 2026-11-22",
                "prefers-color-scheme",
            ],
        );
        // Computed nothing.
        assert!(!picture.contains("FP8"), "{picture}");
    }

    #[test]
    fn what_is_drawn_is_described() {
        let picture = draw(&document(), Some(&others())).unwrap();
        contains(
            &picture,
            &[
                "<title>Time of a layer's call, one vector</title>",
                "4096x7168x8: ceiling 10.0 us, nvfp4-gemv 12.0 us, 83%, bf16 cuBLAS 40.0 us.",
                "Test GPU &lt;1&gt;, driver 580.1.2, 2026-11-21",
            ],
        );
    }

    #[test]
    fn a_layer_that_a_library_cannot_compute_says_so() {
        let mut document = document();
        let mut second = document.cases[0].clone();
        second.m = 64;
        document.cases.push(second);
        let picture = draw(&document, Some(&others())).unwrap();
        assert_eq!(picture.matches(">not available<").count(), 1, "{picture}");
        let alone = draw(&document, None).unwrap();
        assert!(!alone.contains("cuBLAS"), "{alone}");
    }

    #[test]
    fn two_gpus_are_not_compared() {
        let mut document = document();
        document.device.name = "Another".into();
        let error = draw(&document, Some(&others())).unwrap_err().to_string();
        contains(&error, &["Test GPU <1>", "Another"]);
        let nothing = draw(&testing::document(), None).unwrap_err().to_string();
        assert!(nothing.contains("linear"), "{nothing}");
    }
}
