//! Instructions and branch directions that no run executed, as text.

use ptx_sim::coverage::Coverage;
use ptx_sim::report::Site;
use ptx_sim::{Program, Report};

/// `lines 4 to 9 (5 instructions), from ...` for each gap in the executed instructions.
fn gaps(program: &Program, c: &Coverage) -> Vec<String> {
    let executed = &c.counters.executed;
    let missed: Vec<usize> = (0..executed.len())
        .filter(|pc| executed[*pc] == 0)
        .collect();
    missed
        .chunk_by(|a, b| a + 1 == *b)
        .filter_map(|run| {
            let (first, last) = (program.site(*run.first()?), program.site(*run.last()?));
            Some(match run.len() {
                1 => text(&first),
                n => format!(
                    "lines {} to {} ({n} instructions), from {}",
                    first.line,
                    last.line,
                    text(&first)
                ),
            })
        })
        .collect()
}

fn text(s: &Site) -> String {
    let source = s
        .source
        .as_ref()
        .map_or(String::new(), |f| format!(" ({f})"));
    format!("line {}: `{}`{source}", s.line, s.text)
}

pub(super) fn print(program: &Program, r: &Report, runs: u64) {
    let c = &r.coverage;
    let all = match runs {
        1 => String::new(),
        n => format!(" by at least one of {n} runs"),
    };
    outln!(
        "coverage: {} of {} instructions executed{all}",
        c.executed,
        c.instructions
    );
    if c.complete() {
        outln!("coverage: every conditional branch went both ways");
        return;
    }
    for gap in gaps(program, c) {
        outln!("  never executed: {gap}");
    }
    for (what, sites) in [
        ("branch never taken", &c.never_taken),
        ("branch always taken", &c.always_taken),
    ] {
        for s in sites {
            outln!("  {what}: {}", text(s));
        }
    }
}
