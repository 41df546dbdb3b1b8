//! The tables of tools/ptx-sim/docs/public-kernels.md.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use nvfp4_gemv_documents::table::Table;

use super::Became;
use super::cases::{Cases, Kernel};
use super::run::{Mode, Outcome, Run};
use crate::workspace::Workspace;
use crate::write;

/// Writes them between their marks. Kernels that did not run keep their rows.
pub(super) fn update(workspace: &Workspace, cases: &Cases, results: &[Became]) -> Result<()> {
    let path = workspace
        .root()
        .join("tools/ptx-sim/docs/public-kernels.md");
    let text = fs::read_to_string(&path);
    let mut text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let rows = |new: String, faults| merged(&new, &text, cases, results, faults);
    for (name, table) in [
        ("repositories", repositories(cases)),
        ("results", rows(kernels(cases, results), false)),
        ("mistakes", mistakes(cases)),
        ("faults", counted(rows(faults(cases, results), true))),
        ("untried", untried(cases)),
    ] {
        text = between(&text, name, &table)
            .with_context(|| format!("{} has no marks for `{name}`", path.display()))?;
    }
    write::whole(&path, &text)
}

/// The text with other contents between the marks of a table.
fn between(text: &str, name: &str, table: &str) -> Option<String> {
    let begin = format!("<!-- {name} -->\n");
    let end = format!("<!-- end of {name} -->");
    let from = text.find(&begin)? + begin.len();
    let to = from + text[from..].find(&end)?;
    Some(format!("{}\n{table}\n{}", &text[..from], &text[to..]))
}

/// A table with the rows of the page where a kernel has not run, or not with its faults.
fn merged(new: &str, page: &str, cases: &Cases, results: &[Became], faults: bool) -> String {
    let mut lines = new.lines();
    let head: Vec<&str> = lines.by_ref().take(2).collect();
    let old = page.split_once(head[0]).map_or("", |(_, rest)| rest);
    let old = old.lines().skip(2).take_while(|line| line.starts_with('|'));
    let (old, new): (Vec<&str>, Vec<&str>) = (old.collect(), lines.collect());
    let mut all = head;
    for k in &cases.kernels {
        let ran = results
            .iter()
            .any(|r| r.name == k.name && !(faults && r.faults.is_empty()));
        let rows = if ran { &new } else { &old };
        let start = format!("| {} |", k.name);
        all.extend(rows.iter().filter(|row| row.starts_with(&start)));
    }
    all.join("\n") + "\n"
}

/// The table of faults, and how many of them were noticed.
fn counted(table: String) -> String {
    let how = |way: &str| table.lines().filter(|row| row.contains(way)).count();
    let (checks, output) = (how("| a check: "), how("| the program's comparison |"));
    format!(
        "{table}\n{} faults: {checks} noticed by the simulator's checks, {output} more by the comparison of results.\n",
        table.lines().count() - 2
    )
}

fn repositories(cases: &Cases) -> String {
    let mut table = Table::new(["repository", "address", "commit"]);
    for r in &cases.repositories {
        let short: String = r.commit.chars().take(12).collect();
        table.row([r.name.clone(), r.url.clone(), format!("`{short}`")]);
    }
    table.markdown()
}

fn of_results<'a>(
    cases: &'a Cases,
    results: &'a [Became],
) -> impl Iterator<Item = (&'a Kernel, &'a Became)> {
    let of = |k: &Kernel| results.iter().find(|r| r.name == k.name);
    cases.kernels.iter().filter_map(move |k| Some((k, of(k)?)))
}

fn kernels(cases: &Cases, results: &[Became]) -> String {
    let head = "kernel|arguments|hardware|relied on|strict|numbers without hazard checks";
    let mut table = Table::new(head.split('|'));
    for (kernel, result) in of_results(cases, results) {
        let of = |mode| -> Vec<&Run> {
            let runs = result.runs.iter();
            runs.filter(|run| run.mode == mode).collect()
        };
        let relied = of(Mode::Hardware).into_iter().flat_map(|run| &run.notes);
        let relied: BTreeSet<String> = relied.map(|note| format!("`{note}`")).collect();
        let cell = |mode| cell(kernel, mode, &of(mode));
        table.row([
            kernel.name.clone(),
            format!("`{}`", kernel.arguments),
            cell(Mode::Hardware),
            Vec::from_iter(relied).join(", "),
            cell(Mode::Strict),
            cell(Mode::Unchecked),
        ]);
    }
    table.markdown()
}

/// Results of a mode's runs: of the errors that are expected, those that showed.
fn cell(kernel: &Kernel, mode: Mode, runs: &[&Run]) -> String {
    let right = runs.iter().filter(|r| r.outcome == Outcome::Right).count();
    let shows = |error: &&String| {
        runs.iter().any(|r| match &r.outcome {
            Outcome::Right => false,
            Outcome::Error(text) | Outcome::Wrong(text) => text.contains(error.as_str()),
        })
    };
    let errors: Vec<String> = kernel
        .expected(mode)
        .iter()
        .filter(shows)
        .map(|e| format!("\"{}\"", e.trim().trim_end_matches(':')))
        .collect();
    match right {
        _ if errors.is_empty() => "right".into(),
        0 => errors.join(", "),
        n => format!(
            "{}; {n} of {} schedules right",
            errors.join(", "),
            runs.len()
        ),
    }
}

/// A line for each mistake, with the kernels that make it.
fn mistakes(cases: &Cases) -> String {
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    for kernel in &cases.kernels {
        let Some(mistake) = kernel.mistake.as_deref() else {
            continue;
        };
        match all.iter_mut().find(|(text, _)| *text == mistake) {
            Some((_, kernels)) => kernels.push(&kernel.name),
            None => all.push((mistake, vec![&kernel.name])),
        }
    }
    let lines = all.iter();
    let line =
        |(text, kernels): &(&str, Vec<&str>)| format!("- **{}**: {text}\n", kernels.join("**; **"));
    lines.map(line).collect()
}

fn faults(cases: &Cases, results: &[Became]) -> String {
    let mut table = Table::new(["kernel", "fault", "noticed by"]);
    for (kernel, r) in of_results(cases, results) {
        for (listed, f) in kernel.faults.iter().zip(&r.faults) {
            let how = match f.noticed.as_ref().map(|r| &r.outcome) {
                Some(Outcome::Error(text)) => {
                    let line = text.lines().next().unwrap_or_default();
                    let short: String = line.chars().take(90).collect();
                    format!("a check: {short}")
                }
                Some(Outcome::Wrong(_)) => "the program's comparison".into(),
                _ => match &listed.why {
                    Some(why) => format!("nobody: {why}"),
                    None => "nobody".into(),
                },
            };
            let name = format!("`{}`", f.name.replace('`', ""));
            table.row([r.name.clone(), name, how]);
        }
    }
    table.markdown()
}

fn untried(cases: &Cases) -> String {
    let mut t = String::new();
    for u in &cases.untried {
        let _ = writeln!(t, "- **{}**: {}", u.name, u.why);
    }
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_goes_between_its_marks() {
        let text = "a\n<!-- x -->\nold\n<!-- end of x -->\nb\n";
        let new = between(text, "x", "new").unwrap();
        assert_eq!(new, "a\n<!-- x -->\n\nnew\n<!-- end of x -->\nb\n");
        assert_eq!(between(&new, "x", "new").unwrap(), new);
        assert!(between(text, "y", "").is_none());
    }
}
