//! Draws a trace as an SVG picture that stands on its own, on light and dark backgrounds.

mod rows;
mod style;
mod svg;
mod texts;

use std::collections::BTreeMap;

use super::Trace;

/// Options of a picture: contents and form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrawOptions {
    /// Width of the picture in pixels.
    pub width: u32,
    /// Heading; made from what the trace says about itself if there is none.
    pub title: Option<String>,
    /// CTAs by their linear number; the first four if there are none.
    pub ctas: Vec<u32>,
    /// Warps to show; all if there are none.
    pub warps: Vec<u64>,
    /// First step, and the step after the last.
    pub steps: Option<(u64, u64)>,
    /// Better names of rows. Keys are `warp 4`, or the address of an mbarrier as in `0x400`.
    pub labels: BTreeMap<String, String>,
}

impl Default for DrawOptions {
    fn default() -> Self {
        Self {
            width: 1100,
            title: None,
            ctas: Vec::new(),
            warps: Vec::new(),
            steps: None,
            labels: BTreeMap::new(),
        }
    }
}

/// There is nothing to draw.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DrawError {
    /// No event in the chosen part.
    #[error("the chosen CTAs, warps and steps hold no event")]
    Empty,
    /// The steps are not a range.
    #[error("steps {0}..{1} are not a range")]
    Steps(u64, u64),
    /// No room for labels and bars.
    #[error("a width of {0} pixels is not between 400 and 10000")]
    Width(u32),
}

/// CTAs drawn unless told otherwise.
const CTAS: usize = 4;

/// The picture.
pub fn draw(trace: &Trace, options: &DrawOptions) -> Result<String, DrawError> {
    if !(400..=10_000).contains(&options.width) {
        return Err(DrawError::Width(options.width));
    }
    let (from, to) = options.steps.unwrap_or((0, trace.steps.max(1)));
    if from >= to {
        return Err(DrawError::Steps(from, to));
    }
    let ctas: Vec<u32> = if options.ctas.is_empty() {
        trace.ctas.keys().copied().take(CTAS).collect()
    } else {
        options.ctas.clone()
    };
    let picture = rows::picture(trace, options, &ctas, (from, to));
    if picture.rows().all(|r| r.bars.is_empty()) {
        return Err(DrawError::Empty);
    }
    let about = |name: &str| trace.about.get(name).map_or("", String::as_str);
    let title = options.title.clone().unwrap_or_else(|| {
        format!(
            "{}: {} schedule, {} completions",
            about("kernel"),
            about("policy"),
            about("timing")
        )
    });
    let note = trace
        .truncated
        .map(|n| format!("truncated after {n} events"));
    Ok(svg::render(
        &picture,
        (from, to),
        options.width,
        &title,
        note.as_deref(),
    ))
}
