//! Sentences and tables about a document, for Markdown and for pages.

use nvfp4_gemv_documents::document::{BoardReadings, Case, Document, Measured};
use nvfp4_gemv_documents::table::Table;

use super::crossing::{CublasFaster, crossings};
use super::view::{
    self, Kind, PICK_TOLERANCE, best, cases, distinct, isolated, label, percent, pick_to_best,
    problem, shape, time,
};

/// The work that was measured, on which device, when and how: one line each.
pub(super) fn facts(document: &Document) -> Vec<String> {
    let device = &document.device;
    let named = |what: &str, value: &Option<String>| Some(format!("{what} {}", value.as_ref()?));
    let on = [
        Some(device.name.clone()),
        named("compute capability", &device.compute_capability),
        device.multiprocessors.map(|count| format!("{count} SMs")),
        device.threads.map(|count| format!("{count} threads")),
        named("driver", &device.driver),
        named("CUDA runtime", &device.runtime_cuda),
    ];
    let commit = document.git_commit.as_deref().unwrap_or("unknown commit");
    let mut facts = vec![
        on.into_iter().flatten().collect::<Vec<_>>().join(", "),
        format!(
            "{}, nvfp4-gemv {}, {commit}",
            document.date_utc, document.crate_version
        ),
        format!(
            "Medians of {} rounds, in which the ceiling and all paths take turns, {}. A share is the ceiling's time / the path's time of the same round; the ceiling is a kernel \
             that only reads as many bytes.",
            document.method.rounds,
            weights(document),
        ),
    ];
    facts.extend(document.notes.iter().map(|note| format!("Note: {note}.")));
    let failed = document.failed.iter();
    facts.extend(failed.map(|of| format!("NOT MEASURED: {}: {}.", of.problem, of.why)));
    for (path, by) in &document.slowed_percent {
        facts.push(format!(
            "REHEARSAL: {path} was slowed down on purpose, by reading {by}% of the weights again."
        ));
    }
    facts
}

/// The weights that were read, as far as the document says it.
fn weights(document: &Document) -> String {
    if document.method.cold_bytes == 0 {
        return "on the same weights every time, which a cache may hold".into();
    }
    let rotated = document.cases.iter().map(|case| case.rotated_bytes);
    let (least, most) = (
        rotated.clone().min().unwrap_or(0),
        rotated.max().unwrap_or(0),
    );
    let gb = |bytes: usize| format!("{:.3}", bytes as f64 / 1e9);
    let over = match gb(least) == gb(most) {
        true => gb(least),
        false => format!("{} to {}", gb(least), gb(most)),
    };
    // Nothing is known of a CPU's caches.
    let l2 = document.device.l2_bytes;
    let cold = match l2.is_some_and(|l2| least as u64 > l2) {
        true => ", more than the cache holds",
        false => "",
    };
    format!("on copies of the weights of {over} GB together{cold}")
}

/// Times and shares of one kind of operands: a row a problem, a column a path.
pub(super) fn times(document: &Document, kind: &Kind) -> Table {
    let cases = cases(document, kind);
    let labels = distinct(cases.iter().flat_map(|case| case.paths.iter().map(label)));
    let header = ["shape", "n", "ceiling"].map(str::to_owned).into_iter();
    let with_cublas = cases.iter().any(|case| case.cublas.is_some());
    let cublas = with_cublas.then(|| "cuBLAS f16".to_owned());
    let mut table = Table::new(header.chain(labels.iter().cloned()).chain(cublas));
    for case in cases {
        let mut row = vec![
            shape(case),
            case.n.to_string(),
            format!("{:.0} GB/s", case.ceiling.gb_per_s),
        ];
        row.extend(labels.iter().map(|wanted| {
            let path = case.paths.iter().find(|path| label(path) == *wanted);
            path.map_or(String::new(), |path| {
                let mark = if path.picked && path.mode == "isolated" {
                    " *"
                } else {
                    ""
                };
                let kernel = path.kernel.as_ref();
                format!(
                    "{}, {}{}{}{mark}",
                    time(path.median_us),
                    percent(path.share_of_ceiling),
                    faster(path),
                    kernel.map_or(String::new(), |kernel| format!(", {kernel}")),
                )
            })
        }));
        if with_cublas {
            let cublas = case.cublas.as_ref();
            row.push(cublas.map_or(String::new(), |cublas| time(cublas.times.median_us)));
        }
        table.row(row);
    }
    table
}

/// How many times faster than cuBLAS, where that took turns.
fn faster(path: &Measured) -> String {
    let ratio = path.cublas_ratio;
    ratio.map_or(String::new(), |ratio| format!(", {ratio:.2}x"))
}

/// Sustained times, beside the cold time of the same work: without rows where nothing was sustained.
pub(super) fn sustained(document: &Document) -> Table {
    let mut table = Table::new("problem|path|cold|sustained|W|MHz|J/GB|arithmetic J/GB".split('|'));
    for case in &document.cases {
        let mut row = |name: String, cold_us: f64, board: &BoardReadings| {
            let Some(sustained) = &board.sustained else {
                return;
            };
            let figure = |value: Option<f64>, digits: usize| {
                value.map_or(String::new(), |value| format!("{value:.digits$}"))
            };
            table.row(vec![
                problem(case),
                name,
                time(cold_us),
                time(sustained.mean_us),
                figure(sustained.watts, 0),
                figure(sustained.sm_mhz, 0),
                figure(sustained.joules_per_gb, 3),
                figure(sustained.arithmetic_joules_per_gb, 3),
            ]);
        };
        let ceiling = &case.ceiling;
        row("read-only".into(), ceiling.median_us, &ceiling.board);
        for path in &case.paths {
            row(label(path), path.median_us, &path.board);
        }
        if let Some(cublas) = &case.cublas {
            let times = &cublas.times;
            row("cuBLAS f16".into(), times.median_us, &times.board);
        }
    }
    table
}

/// The meaning of the sustained table.
pub(super) const SUSTAINED: &str = "Each was repeated without rest; the last half counts. Energy is the whole board's, \
    for each 10^9 bytes of weights; arithmetic is what a path takes beyond the kernel that only reads.";

/// How good the dispatch's choices were, and the choices that were not.
pub(super) fn dispatch(document: &Document) -> (String, Table) {
    let mut table = Table::new(["problem", "picked", "best", "picked / best", "because"]);
    let (mut good, mut all) = (0, 0);
    let mut worst: f64 = 1.0;
    // A choice between one path is none.
    for case in document
        .cases
        .iter()
        .filter(|case| isolated(case).count() > 1)
    {
        let (Some(ratio), Some(best), Some(picked)) =
            (pick_to_best(case), best(case), &case.picked)
        else {
            continue;
        };
        all += 1;
        worst = worst.max(ratio);
        if ratio <= PICK_TOLERANCE {
            good += 1;
            continue;
        }
        table.row(vec![
            problem(case),
            picked.path.clone(),
            best.path.clone(),
            format!("{ratio:.3}"),
            picked.reason.clone(),
        ]);
    }
    let sentence = match all {
        0 => "No problem could be computed on more than one path.".into(),
        _ => format!(
            "The path that the library picks is within {:.0}% of the best measured path in {good} of {all} \
             problems that more than one path can compute; the worst takes {:.1}% longer than the best.",
            100.0 * (PICK_TOLERANCE - 1.0),
            100.0 * (worst - 1.0)
        ),
    };
    (sentence, table)
}

/// The numbers of vectors from which another path is faster.
pub(super) fn crossing_table(document: &Document) -> Table {
    let mut table = Table::new(["shape", "operands", "crossing"]);
    for kind in view::kinds(document) {
        for cases in by_shape(&cases(document, &kind)) {
            if let Some(text) = CublasFaster::of(&cases).text() {
                table.row(vec![shape(cases[0]), kind.title(), text]);
            }
            for crossing in crossings(&cases) {
                table.row(vec![shape(cases[0]), kind.title(), crossing.text()]);
            }
        }
    }
    table
}

/// Cases of the same shape, n rising.
pub(super) fn by_shape<'a>(cases: &[&'a Case]) -> Vec<Vec<&'a Case>> {
    let key = |case: &Case| (case.m, case.k, case.l);
    let groups = distinct(cases.iter().map(|case| key(case)))
        .into_iter()
        .map(|of| {
            let group = cases.iter().copied().filter(|case| key(case) == of);
            let mut group: Vec<&Case> = group.collect();
            group.sort_by_key(|case| case.n);
            group
        });
    groups.collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn bad_picks_are_listed_and_lone_paths_are_not_counted() {
        let (sentence, table) = dispatch(&testing::document());
        assert!(sentence.contains("in 1 of 2 problems"), "{sentence}");
        assert!(sentence.contains("20.0% longer"), "{sentence}");
        let table = table.markdown();
        assert!(
            table.contains("n=4 nvfp4") && !table.contains("n=1 nvfp4"),
            "{table}"
        );
        assert!(!table.contains("bf16"), "{table}");
    }

    #[test]
    fn cublas_and_energy_have_their_places() {
        let document = testing::vectors();
        let kind = &view::kinds(&document)[1];
        let table = times(&document, kind).markdown();
        assert!(table.contains("| cuda-core | cuBLAS f16 |"), "{table}");
        assert!(
            table.contains("| 14.0 us, 57%, 2.21x, stream * | 31.0 us |"),
            "{table}"
        );
        let table = crossing_table(&document).markdown();
        assert!(table.contains("f16 vectors, linear scales | cuBLAS f16 is faster from n = 74 on"));
        let table = sustained(&document).markdown();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4, "{table}");
        assert!(lines[2].contains("| read-only | 8.00 us | 9.00 us | 616 | 1980 | 0.150 |  |"));
        assert!(
            lines[3].contains("| 705 | 1980 | 0.170 | 0.020 |"),
            "{table}"
        );
        assert!(sustained(&testing::document()).is_empty());
        let facts = facts(&document).concat();
        assert!(
            facts.contains("Note: energy: invented for a test."),
            "{facts}"
        );
    }

    #[test]
    fn the_weights_are_said_to_be_cold_only_where_they_were() {
        let mut document = testing::document();
        let says = |document: &Document, part: &str| {
            let facts = facts(document).concat();
            assert!(facts.contains(part), "{facts}");
        };
        says(
            &document,
            "on copies of the weights of 0.528 GB together, more than the cache holds. A share",
        );
        document.cases[0].rotated_bytes = 20_000_000;
        says(&document, "weights of 0.020 to 0.528 GB together. A share");
        document.method.cold_bytes = 0;
        says(
            &document,
            "on the same weights every time, which a cache may hold. A share",
        );
    }

    #[test]
    fn a_slowed_run_says_so() {
        let mut document = testing::document();
        assert!(!facts(&document).concat().contains("REHEARSAL"));
        document.slowed_percent.insert("cuda-core".into(), 10);
        assert!(facts(&document).concat().contains("REHEARSAL: cuda-core"));
    }

    #[test]
    fn tables_have_a_row_a_problem_and_a_column_a_path() {
        let document = testing::document();
        let kind = &view::kinds(&document)[0];
        let table = times(&document, kind).markdown();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4, "{table}");
        assert!(lines[0].ends_with("| cuda-core | tensor-core | tensor-core chained |"));
        assert!(lines[2].contains("12.0 us, 83% *"), "{table}");
        assert!(lines[3].ends_with("|  |"), "{table}");
        assert!(
            crossing_table(&document)
                .markdown()
                .contains("near n = 1.7")
        );
    }
}
