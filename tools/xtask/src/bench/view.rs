//! How a document's measurements are grouped and named, the same in Markdown, pages and comparisons.

use nvfp4_gemv_documents::document::{self, Case, Document, Measured};
use nvfp4_gemv_documents::protocol::Problem;
use nvfp4_gemv_documents::statistics::median;

/// Properties of the operands: a section of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) activation: String,
    pub(crate) layout: String,
    pub(crate) output_type: String,
    pub(crate) select: Option<String>,
}

impl Kind {
    pub(crate) fn of(case: &Case) -> Self {
        Self {
            activation: case.activation.clone(),
            layout: case.layout.clone(),
            output_type: case.output_type.clone(),
            select: case.select.clone(),
        }
    }

    /// The kind in words, for people.
    pub(crate) fn title(&self) -> String {
        let activation = match self.activation.as_str() {
            "nvfp4" => "NVFP4",
            other => other,
        };
        let mut title = format!("{activation} vectors, {} scales", self.layout);
        if self.output_type != "f16" {
            title.push_str(&format!(", {} results", self.output_type));
        }
        if let Some(ids) = &self.select {
            title.push_str(&format!(", matrices selected by {ids} ids"));
        }
        title
    }
}

/// The kinds of a document, as they come.
pub(crate) fn kinds(document: &Document) -> Vec<Kind> {
    distinct(document.cases.iter().map(Kind::of))
}

/// A kind's cases.
pub(crate) fn cases<'a>(document: &'a Document, kind: &Kind) -> Vec<&'a Case> {
    let cases = document.cases.iter();
    cases.filter(|case| Kind::of(case) == *kind).collect()
}

/// Distinct values in the order of their first appearance.
pub(crate) fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

/// `MxK`, then `xL` where it is not 1.
pub(crate) fn shape(case: &Case) -> String {
    match case.l {
        1 => format!("{}x{}", case.m, case.k),
        l => format!("{}x{}x{l}", case.m, case.k),
    }
}

/// The problem, in one line: the part of a key that all paths share.
pub(crate) fn problem(case: &Case) -> String {
    Problem::from(case).to_string()
}

/// Path, and mode where it is not the usual one.
pub(crate) fn label(path: &Measured) -> String {
    match path.mode.as_str() {
        "isolated" => path.path.clone(),
        mode => format!("{} {mode}", path.path),
    }
}

/// The kernel that computed it, and the clock and power of the board right after a turn, as far as they are known.
pub(crate) fn computed_by(path: &Measured) -> Option<String> {
    let kernel = path.kernel.as_ref();
    let kernel = kernel.map(|kernel| format!("kernel {kernel}"));
    let clock = path.board.sm_mhz.map(|mhz| format!("{mhz:.0} MHz"));
    let power = path.board.watts.map(|watts| format!("{watts:.0} W"));
    let known: Vec<String> = [kernel, clock, power].into_iter().flatten().collect();
    (!known.is_empty()).then(|| known.join(", "))
}

/// A result's name: a path on a problem.
pub(crate) fn key(case: &Case, path: &Measured) -> String {
    format!("{} {}", problem(case), label(path))
}

/// Paths whose launches each start when the one before has ended: these are compared.
pub(crate) fn isolated(case: &Case) -> impl Iterator<Item = &Measured> {
    case.paths.iter().filter(|path| path.mode == "isolated")
}

/// The shares of the ceiling, round by round.
pub(crate) fn shares(case: &Case, path: &Measured) -> Vec<f64> {
    document::shares(&case.ceiling.samples_us, &path.samples_us)
}

/// The fastest path.
pub(crate) fn best(case: &Case) -> Option<&Measured> {
    isolated(case).min_by(|a, b| a.median_us.total_cmp(&b.median_us))
}

/// How much longer the picked path takes than the best, both measured in the same rounds: 1 if it is
/// the best.
pub(crate) fn pick_to_best(case: &Case) -> Option<f64> {
    let picked = isolated(case).find(|path| path.picked)?;
    let best = best(case)?;
    let pairs = picked.samples_us.iter().zip(&best.samples_us);
    Some(median(&pairs.map(|(p, b)| p / b).collect::<Vec<_>>()))
}

/// How much slower a pick may be than the best.
pub(crate) const PICK_TOLERANCE: f64 = 1.03;

/// A time in the unit that suits it.
pub(crate) fn time(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2} us"),
        us if us < 1e3 => format!("{us:.1} us"),
        us => format!("{:.2} ms", us / 1e3),
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn groups_and_names() {
        let document = testing::document();
        let kinds = kinds(&document);
        assert_eq!(kinds.len(), 2);
        assert_eq!(kinds[0].title(), "NVFP4 vectors, 128x4 scales");
        let cases = cases(&document, &kinds[0]);
        assert_eq!(problem(cases[0]), "4096x7168x8 n=1 nvfp4 128x4");
        assert_eq!(label(&cases[0].paths[2]), "tensor-core chained");
        assert_eq!(
            (time(5.0), time(2.5e3)),
            ("5.00 us".into(), "2.50 ms".into())
        );
    }

    /// Results of another type, and calls that select, are no further rows of the same table.
    #[test]
    fn kinds_differ_in_all_that_a_table_does_not_show() {
        let mut document = testing::document();
        let mut other = document.cases[0].clone();
        other.output_type = "f32".into();
        let mut selecting = document.cases[0].clone();
        selecting.select = Some("late".into());
        document.cases.extend([other, selecting]);
        let titles: Vec<String> = kinds(&document).iter().map(Kind::title).collect();
        assert_eq!(titles.len(), 4);
        assert_eq!(titles[2], "NVFP4 vectors, 128x4 scales, f32 results");
        assert_eq!(
            titles[3],
            "NVFP4 vectors, 128x4 scales, matrices selected by late ids"
        );
    }

    #[test]
    fn a_pick_is_compared_with_the_best_of_the_same_rounds() {
        let document = testing::document();
        // n = 1: cuda-core is picked and the best; n = 4: picked and 20% slower.
        assert_eq!(pick_to_best(&document.cases[0]), Some(1.0));
        let ratio = pick_to_best(&document.cases[1]).unwrap();
        assert!((ratio - 1.2).abs() < 0.01, "{ratio}");
        assert_eq!(best(&document.cases[1]).unwrap().path, "tensor-core");
    }
}
