//! The report of a night: sentences, and tables of what changed and by how much.

use nvfp4_gemv_documents::document::Document;
use nvfp4_gemv_documents::table::Table;

use super::baseline::{COARSE, Coarse};
use super::compare::{Change, Comparison, Entry};
use super::last_good::Origin;
use crate::bench::page::Finding;
use crate::bench::view::percent;

/// Rows of a table in a terminal.
const MOST_ROWS: usize = 30;

/// The findings of a night.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The comparison with the last good program, where there is one.
    pub(super) compared: Option<(Origin, Comparison)>,
    /// The baseline's figures; nothing where there is none for this GPU model.
    pub(super) coarse: Option<Coarse>,
}

impl Outcome {
    pub(super) fn passed(&self) -> bool {
        let compared = self.compared.as_ref();
        let coarse = self.coarse.as_ref();
        compared.is_none_or(|(_, comparison)| comparison.passed())
            && coarse.is_none_or(|of| of.far.is_empty() && of.missing.is_empty())
    }

    /// The verdict in the history.
    pub(super) fn verdict(&self) -> &'static str {
        match self {
            _ if !self.passed() => "slower",
            Self {
                compared: None,
                coarse: None,
            } => "nothing to compare with",
            _ => "ok",
        }
    }

    /// Whether tonight's program may become the last good one, and why not. It must not be slower on average:
    /// losses below the threshold of a single result would add up, night after night.
    pub(super) fn may_follow(&self) -> Result<(), String> {
        /// How much slower a group of results may be on average, as a part.
        const DRIFT: f64 = 0.005;
        if !self.passed() {
            return Err("something got slower".into());
        }
        let Some((origin, comparison)) = &self.compared else {
            return Ok(());
        };
        if comparison.entries.is_empty() {
            return Err("nothing was compared".into());
        }
        let means = comparison.means();
        let worst = means.iter().max_by(|a, b| a.2.total_cmp(&b.2));
        match worst {
            Some((group, _, mean)) if *mean > 1.0 + DRIFT => Err(format!(
                "{group} takes {} on average; the program of {origin} stays the one to compare with",
                change(*mean)
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn sentences(&self, document: &Document) -> Vec<String> {
        let mut sentences = vec![self.paired_sentence(), self.coarse_sentence(document)];
        if let (true, Err(why)) = (self.passed(), self.may_follow()) {
            sentences.push(format!("It does not become the last good program: {why}."));
        }
        sentences
    }

    fn paired_sentence(&self) -> String {
        let Some((origin, comparison)) = &self.compared else {
            return "This program took turns with no other.".into();
        };
        let count = |change| {
            let entries = comparison.entries.iter();
            entries.filter(|entry| entry.change == change).count()
        };
        let (slower, missing) = (count(Change::Slower), comparison.missing.len());
        let mut sentence = if slower + missing == 0 {
            "Nothing got slower".to_owned()
        } else {
            format!("{slower} got slower, {missing} are no longer measured")
        };
        sentence.push_str(&format!(
            " of {} results, in turns with the program of {origin}",
            comparison.entries.len() + missing,
        ));
        for (number, what) in [
            (count(Change::Faster), "got faster"),
            (
                count(Change::Unconfirmed),
                "looked slower, but not when measured again",
            ),
            (comparison.new.len(), "new, with nothing to compare with"),
        ] {
            if number > 0 {
                sentence.push_str(&format!("; {number} {what}"));
            }
        }
        sentence + "."
    }

    fn coarse_sentence(&self, document: &Document) -> String {
        let name = &document.device.name;
        let limit = format!("{:.0}%", 100.0 * COARSE);
        match &self.coarse {
            None => format!(
                "There is no baseline for {name}. `cargo xtask nightly --update-baseline` makes one; run it after \
                 three starts of the machine or more, and commit it."
            ),
            Some(Coarse {
                far,
                missing,
                sessions,
            }) => {
                let far = match far.len() {
                    0 => "No result takes".into(),
                    1 => "1 result takes".into(),
                    count => format!("{count} results take"),
                };
                let mut sentence = format!(
                    "{far} more than {limit} longer, in multiples of the ceiling, than in the worst of the {} of \
                     {name} in the baseline.",
                    plural(*sessions, "session"),
                );
                if let [first, others @ ..] = &missing[..] {
                    let others = match others.len() {
                        0 => String::new(),
                        count => format!(" and {}", plural(count, "other")),
                    };
                    sentence.push_str(&format!(
                        " Its newest session has {first}{others}, which tonight's run has not measured."
                    ));
                }
                sentence
            }
        }
    }

    /// Missing and changed results, the worst first; of each kind no more rows than `most`.
    fn changes(&self, most: usize) -> Table {
        let mut table =
            Table::new("result|verdict|time|99% interval|before|now|J/GB before, now".split('|'));
        let Some((_, comparison)) = &self.compared else {
            return table;
        };
        for key in comparison.missing.iter().take(most) {
            let mut row = vec![key.clone(), "missing".into()];
            row.resize(7, String::new());
            table.row(row);
        }
        let entries = comparison.entries.iter();
        // Sustained results are figures that a reader wants to see in any case.
        let shown = entries
            .filter(|e| e.change != Change::Same || e.interval.is_some() || e.group.is_none());
        let mut shown: Vec<&Entry> = shown.collect();
        shown.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
        for entry in shown.into_iter().take(most) {
            let verdict = match entry.change {
                Change::Slower => "SLOWER",
                Change::Unconfirmed => "unconfirmed",
                Change::Faster => "faster",
                Change::Same => "same",
            };
            let interval = entry.interval.map_or(String::new(), |interval| {
                format!("{} to {}", change(interval.low), change(interval.high))
            });
            let joules = entry.joules_per_gb.map_or(String::new(), |(before, now)| {
                format!("{before:.3}, {now:.3}")
            });
            table.row(vec![
                entry.key.clone(),
                verdict.into(),
                change(entry.ratio),
                interval,
                format!("{:.2} us", entry.before_us),
                format!("{:.2} us", entry.now_us),
                joules,
            ]);
        }
        table
    }

    /// Results that are far below the baseline.
    fn far(&self, most: usize) -> Table {
        let mut table = Table::new(["result", "share in the worst session", "share now"]);
        for far in self.coarse.iter().flat_map(|of| &of.far).take(most) {
            table.row(vec![far.key.clone(), percent(far.worst), percent(far.now)]);
        }
        table
    }

    /// Mean change of each path: a drift that no single result's threshold shows.
    fn overall(&self) -> Table {
        let mut table = Table::new(["path, vectors", "results", "time on average"]);
        if let Some((_, comparison)) = &self.compared {
            for (group, results, mean) in comparison.means() {
                table.row(vec![group.to_owned(), results.to_string(), change(mean)]);
            }
        }
        table
    }

    /// The whole report, for a page and for `nightly.md`.
    pub(super) fn finding(&self, document: &Document) -> Finding {
        let tables = [
            self.changes(usize::MAX),
            self.far(usize::MAX),
            self.overall(),
        ];
        Finding {
            text: self.sentences(document).join(" "),
            good: self.passed(),
            tables: tables
                .into_iter()
                .filter(|table| !table.is_empty())
                .collect(),
        }
    }

    /// The report for the terminal, which the worst result must not scroll out of.
    pub(super) fn text(&self, document: &Document) -> String {
        let mut text = self.sentences(document).join("\n") + "\n";
        for (path, by) in &document.slowed_percent {
            text.push_str(&format!("(a rehearsal: {path} was slowed down by {by}%)\n"));
        }
        let (changes, far) = (self.changes(MOST_ROWS), self.far(MOST_ROWS));
        for (table, all) in [
            (&changes, self.changes(usize::MAX)),
            (&far, self.far(usize::MAX)),
        ] {
            if !table.is_empty() {
                text.push_str(&format!("\n{}\n", table.markdown()));
            }
            let more = all.len().saturating_sub(table.len());
            if more > 0 {
                text.push_str(&format!("and {more} more\n"));
            }
        }
        let overall = self.overall();
        if !overall.is_empty() {
            text.push_str(&format!("\n{}\n", overall.markdown()));
        }
        text
    }
}

/// `+10.2%` for a ratio of 1.102.
fn change(ratio: f64) -> String {
    format!("{:+.1}%", 100.0 * (ratio - 1.0))
}

fn plural(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}
