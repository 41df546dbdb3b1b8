//! The summary of a night, for people.

use std::collections::BTreeMap;

use nvfp4_gemv_documents::table::Table;
use serde_json::Value;

use super::archive::Manifest;
use super::watchdog::End;

/// A page of Markdown. `replays` are what the simulator says of each topic's recording, `published` what the steps say
/// of the published rule of sums.
pub(super) fn markdown(
    manifest: &Manifest,
    replays: &BTreeMap<String, Value>,
    published: &BTreeMap<String, Value>,
) -> String {
    let device = &manifest.device;
    let (major, minor) = device.compute_capability;
    let mut text = format!(
        "# First light: {}\n\nCompute capability {major}.{minor}, driver {}, crate {}, commit {}.\n\n",
        plain(&device.name),
        plain(&device.driver),
        plain(&manifest.version),
        plain(manifest.commit.as_deref().unwrap_or("unknown")),
    );
    let mut table = Table::new(["step", "end", "seconds", "what"]);
    for ran in &manifest.steps {
        let (word, why) = (ran.end.word(), plain(ran.end.why()));
        let end = match why.as_str() {
            "" => word.to_owned(),
            why => format!("{word}: {why}"),
        };
        table.row([
            ran.name.clone(),
            end,
            ran.seconds.to_string(),
            ran.what.clone(),
        ]);
    }
    text += &table.markdown();
    text += "\n## What differs from the simulator\n\n";
    for (topic, replay) in replays {
        let different = replay["different"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        text += &format!(
            "- {topic}: {} of {} cases differ\n",
            different.len(),
            replay["cases"]
        );
        for case in different.iter().take(20) {
            let name = said(&case["case"]);
            let known = known(topic, &name).map_or(String::new(), |reason| {
                format!(". **Known** of an H200: {reason}")
            });
            text += &format!(
                "  - {name} ({}): {}{known}\n",
                said(&case["status"]),
                said(&case["why"])
            );
        }
        if different.len() > 20 {
            text += "  - and more: logs of the step\n";
        }
    }
    text += "\n## What the kernels rely on\n\n";
    let claims = replays.values().map(|replay| &replay["claims"]);
    let claims: Vec<&Value> = claims.filter_map(Value::as_array).flatten().collect();
    if claims.is_empty() {
        text += "No probe has asked.\n";
    }
    for claim in claims {
        let holds = if claim["holds"] == true {
            "holds"
        } else {
            "**does not hold**"
        };
        text += &format!(
            "- {holds}: {} ({})\n",
            said(&claim["says"]),
            said(&claim["seen"])
        );
    }
    text += "\n## How sums are rounded\n\n";
    if replays.values().all(|replay| !replay["sums"].is_object()) {
        text += "No probe has asked.\n";
    }
    for (topic, replay) in replays {
        if replay["sums"].is_object() {
            text += &sums(topic, &replay["sums"]);
        }
    }
    text += "\n## Whether the published rule of sums holds\n\n";
    if published.is_empty() {
        text += "Nobody has asked.\n";
    }
    for (step, verdict) in published {
        match verdict.as_array() {
            Some(problems) => problems.iter().for_each(|of| text += &predicted(step, of)),
            None => text += &rule(step, verdict),
        }
    }
    text
}

/// A recording that was replayed by the published rule.
fn rule(step: &str, replay: &Value) -> String {
    let different = replay["different"].as_array();
    let different = different.map_or(&[][..], Vec::as_slice);
    let (cases, gpu) = (&replay["cases"], said(&replay["sums_of"]));
    if different.is_empty() {
        return format!("- {step}: **confirmed** for {gpu}: {cases} cases have the same bits\n");
    }
    let names = different.iter().take(20).map(|case| said(&case["case"]));
    let names: Vec<String> = names.collect();
    format!(
        "- {step}: **refuted** for {gpu}, or not asked: {} of {cases} cases differ, among them {}\n",
        different.len(),
        names.join(", ")
    )
}

/// A whole problem whose bits were predicted.
fn predicted(step: &str, of: &Value) -> String {
    format!(
        "- {step}: **{}**: M = {}, K = {}, L = {}, {}: {} of {} groups of 128 rows differ\n",
        said(&of["verdict"]),
        of["m"],
        of["k"],
        of["l"],
        said(&of["data"]),
        of["groups_that_differ"],
        of["groups"]
    )
}

/// Why the simulator does not reproduce a case of an H200, where that is known: cases are named once, or by how they
/// begin.
pub(super) fn known(topic: &str, case: &str) -> Option<&'static str> {
    let exceptions = include_str!("../../../ptx-sim/probes/exceptions.txt");
    let lines = exceptions.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let (of, rest) = line.split_once(' ')?;
            let (name, reason) = rest.split_once(' ')?;
            let is_it = match name.strip_suffix('*') {
                Some(start) => case.starts_with(start),
                None => case == name,
            };
            (of == topic && is_it).then_some(reason)
        })
        .next()
}

fn sums(topic: &str, sums: &Value) -> String {
    let mut text = format!("- {topic}: ");
    if sums["exact_sums_wrong"] != 0 || sums["columns_agree"] != true {
        text += "**operands are not where they are believed to be**; nothing else here counts. ";
    }
    let machine = &sums["machine"];
    let place = match &machine["fraction"] {
        Value::Null => "nothing is cut before the result".into(),
        bits => format!(
            "terms are cut ({}) {bits} places below the largest",
            said(&machine["cut"])
        ),
    };
    text += &format!(
        "{} of {} results come out so: {} products are one sum, {} of them added exactly before, C {}; {place}; the \
         result is rounded {}; exponents of {}. {} other rules explain as many.\n  \
         **ASSUMED_ROUNDINGS must be {} at least** (worst of each series: {}).\n",
        sums["explained"],
        sums["sums"],
        machine["chain"],
        machine["grain"],
        if machine["c_with_products"] == true {
            "is one of the terms"
        } else {
            "is added to it"
        },
        said(&machine["result"]),
        said(&machine["exponents"]),
        sums["as_good"],
        sums["roundings_at_least"],
        said(&sums["roundings"]),
    );
    text
}

pub(super) fn said(value: &Value) -> String {
    match value {
        Value::String(text) => plain(text),
        other => plain(&other.to_string()),
    }
}

/// Text from elsewhere, on one line of Markdown, and not too much of it.
pub(super) fn plain(text: &str) -> String {
    let kept = text.chars().take(300);
    let mut kept: String = kept.map(|c| if c.is_control() { ' ' } else { c }).collect();
    for sign in ['|', '<', '`'] {
        kept = kept.replace(sign, " ");
    }
    kept
}

/// The result of a night, in a line, and whether it passed.
pub(super) fn verdict(manifest: &Manifest) -> (String, bool) {
    let count = |is: fn(&End) -> bool| manifest.steps.iter().filter(|ran| is(&ran.end)).count();
    let passed = count(|end| *end == End::Passed);
    let skipped = count(|end| matches!(end, End::Skipped(_)));
    let failed = manifest.steps.len() - passed - skipped;
    (
        format!("{passed} steps passed, {failed} failed, {skipped} skipped"),
        failed == 0 && passed > 0,
    )
}
