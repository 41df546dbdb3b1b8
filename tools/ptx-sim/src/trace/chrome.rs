//! The Chrome trace format, which Perfetto and `chrome://tracing` open.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Flow, KINDS, Slice, TRACK_KINDS, Trace, Track, by_name, name_of};

/// Said wherever the axis is shown.
const AXIS: &str = "simulator steps: an order of events, not a time";

/// A file is not a trace of this program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a trace of this program: {0}")]
pub struct TraceError(String);

impl Trace {
    /// Writes JSON, an event a line. A step is shown as a microsecond.
    pub fn write_chrome(&self, out: &mut impl Write) -> io::Result<()> {
        let about = json!({
            "axis": AXIS,
            "steps": self.steps,
            "truncated": self.truncated.map(truncation),
            "truncated_after": self.truncated,
            "run": self.about,
        });
        writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{about},")?;
        write!(out, "\"traceEvents\":[")?;
        let mut first = true;
        let mut event = |v: Value| {
            let comma = if first { "" } else { "," };
            first = false;
            write!(out, "{comma}\n{v}")
        };
        for (cta, id) in &self.ctas {
            let [x, y, z] = id;
            let name = format!("CTA ({x}, {y}, {z})");
            event(
                json!({"ph": "M", "name": "process_name", "pid": cta, "tid": 0,
                        "args": {"name": name, "ctaid": id}}),
            )?;
            event(
                json!({"ph": "M", "name": "process_sort_index", "pid": cta, "tid": 0,
                        "args": {"sort_index": cta}}),
            )?;
        }
        let rows = self.rows();
        for (i, t) in self.tracks.iter().enumerate() {
            for lane in 0..rows.lanes[i].max(1) {
                let tid = rows.first[i] + lane;
                let name = match lane {
                    0 => t.name.clone(),
                    n => format!("{} ({})", t.name, n + 1),
                };
                let kind = name_of(&TRACK_KINDS, t.kind);
                event(
                    json!({"ph": "M", "name": "thread_name", "pid": t.cta, "tid": tid,
                        "args": {"name": name, "track": t.name, "kind": kind, "index": t.index}}),
                )?;
                event(
                    json!({"ph": "M", "name": "thread_sort_index", "pid": t.cta, "tid": tid,
                        "args": {"sort_index": tid}}),
                )?;
            }
        }
        for (s, tid) in self.slices.iter().zip(&rows.tids) {
            event(
                json!({"ph": "X", "name": s.name, "cat": name_of(&KINDS, s.kind),
                "pid": self.tracks[s.track].cta, "tid": tid, "ts": s.start, "dur": s.end - s.start,
                "args": s.details}),
            )?;
        }
        for (id, f) in self.flows.iter().enumerate() {
            let (a, b) = (&self.slices[f.from], &self.slices[f.to]);
            // Arrows attach to the slice around their ends, hence the halves.
            event(
                json!({"ph": "s", "name": "completes", "cat": "flow", "id": id,
                "pid": self.tracks[a.track].cta, "tid": rows.tids[f.from],
                "ts": a.end as f64 - 0.5, "args": {"slice": f.from}}),
            )?;
            event(
                json!({"ph": "f", "bp": "e", "name": "completes", "cat": "flow", "id": id,
                "pid": self.tracks[b.track].cta, "tid": rows.tids[f.to],
                "ts": b.start as f64 + 0.5, "args": {"slice": f.to}}),
            )?;
        }
        if let Some(n) = self.truncated {
            event(
                json!({"ph": "i", "s": "g", "name": truncation(n), "cat": "trace",
                "pid": 0, "tid": 0, "ts": self.steps}),
            )?;
        }
        writeln!(out, "\n]}}")
    }

    /// The JSON as a string.
    pub fn to_chrome(&self) -> String {
        let mut out = Vec::new();
        // Writing to memory does not fail.
        let _ = self.write_chrome(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Reads a text that [`Trace::write_chrome`] wrote.
    pub fn from_chrome(text: &str) -> Result<Self, TraceError> {
        let file: Value = serde_json::from_str(text).map_err(|e| TraceError(e.to_string()))?;
        let missing = |what: &str| TraceError(format!("there is no {what}"));
        let about = &file["otherData"];
        let events = file["traceEvents"]
            .as_array()
            .ok_or_else(|| missing("traceEvents"))?;
        let mut trace = Trace {
            steps: about["steps"].as_u64().ok_or_else(|| missing("steps"))?,
            truncated: about["truncated_after"].as_u64().map(|n| n as usize),
            about: serde_json::from_value(about["run"].clone()).unwrap_or_default(),
            ..Trace::default()
        };
        let mut tracks: BTreeMap<(u64, u64), usize> = BTreeMap::new();
        let mut starts: BTreeMap<u64, usize> = BTreeMap::new();
        for e in events {
            let number = |name: &str| e[name].as_u64().ok_or_else(|| missing(name));
            let place = || Ok::<_, TraceError>((number("pid")?, number("tid")?));
            match (e["ph"].as_str(), e["name"].as_str().unwrap_or_default()) {
                (Some("M"), "process_name") => {
                    let id = serde_json::from_value(e["args"]["ctaid"].clone());
                    let id = id.map_err(|_| missing("ctaid"))?;
                    trace.ctas.insert(cta(number("pid")?)?, id);
                }
                (Some("M"), "thread_name") => {
                    let t = track(&e["args"], cta(number("pid")?)?)
                        .ok_or_else(|| missing("track's description"))?;
                    let i = match trace.tracks.iter().position(|k| *k == t) {
                        Some(i) => i,
                        None => {
                            trace.tracks.push(t);
                            trace.tracks.len() - 1
                        }
                    };
                    tracks.insert(place()?, i);
                }
                (Some("X"), name) => {
                    let start = number("ts")?;
                    let end = start.checked_add(number("dur")?);
                    let details = serde_json::from_value(e["args"].clone());
                    trace.slices.push(Slice {
                        track: *tracks.get(&place()?).ok_or_else(|| missing("track"))?,
                        start,
                        end: end.ok_or_else(|| missing("end"))?,
                        kind: e["cat"]
                            .as_str()
                            .and_then(|c| by_name(&KINDS, c))
                            .ok_or_else(|| missing("known cat"))?,
                        name: name.to_string(),
                        details: details.map_err(|_| missing("args"))?,
                    });
                }
                (Some("s"), _) => {
                    let from = e["args"]["slice"].as_u64();
                    starts.insert(
                        number("id")?,
                        from.ok_or_else(|| missing("slice"))? as usize,
                    );
                }
                (Some("f"), _) => {
                    let to = e["args"]["slice"].as_u64();
                    let from = starts.get(&number("id")?);
                    trace.flows.push(Flow {
                        from: *from.ok_or_else(|| missing("start of a flow"))?,
                        to: to.ok_or_else(|| missing("slice"))? as usize,
                    });
                }
                _ => {}
            }
        }
        let known = trace.slices.len();
        if trace.flows.iter().any(|f| f.from >= known || f.to >= known) {
            return Err(missing("slice of a flow"));
        }
        Ok(trace)
    }

    /// Operations of a track may overlap, which slices of a row must not.
    fn rows(&self) -> Rows {
        let mut ends: Vec<Vec<u64>> = vec![Vec::new(); self.tracks.len()];
        let mut lane = vec![0; self.slices.len()];
        let mut order: Vec<usize> = (0..self.slices.len()).collect();
        order.sort_by_key(|i| (self.slices[*i].start, *i));
        for i in order {
            let s = &self.slices[i];
            let ends = &mut ends[s.track];
            let free = ends.iter().position(|e| *e <= s.start);
            lane[i] = free.unwrap_or(ends.len());
            match free {
                Some(l) => ends[l] = s.end,
                None => ends.push(s.end),
            }
        }
        let lanes: Vec<usize> = ends.iter().map(Vec::len).collect();
        let mut order: Vec<usize> = (0..self.tracks.len()).collect();
        order.sort_by_key(|i| {
            let t = &self.tracks[*i];
            (t.cta, t.kind, t.index)
        });
        let mut first = vec![0; self.tracks.len()];
        let mut next = 1;
        for i in order {
            first[i] = next;
            next += lanes[i].max(1);
        }
        let tids = self
            .slices
            .iter()
            .zip(lane)
            .map(|(s, l)| first[s.track] + l);
        Rows {
            tids: tids.collect(),
            first,
            lanes,
        }
    }
}

struct Rows {
    /// The row of each slice.
    tids: Vec<usize>,
    /// The first of each track, and how many it has.
    first: Vec<usize>,
    lanes: Vec<usize>,
}

fn truncation(limit: usize) -> String {
    format!("truncated after {limit} events")
}

fn cta(pid: u64) -> Result<u32, TraceError> {
    u32::try_from(pid).map_err(|_| TraceError(format!("process {pid} is no CTA")))
}

fn track(v: &Value, cta: u32) -> Option<Track> {
    Some(Track {
        cta,
        kind: by_name(&TRACK_KINDS, v["kind"].as_str()?)?,
        index: v["index"].as_u64()?,
        name: v["track"].as_str()?.to_string(),
    })
}
