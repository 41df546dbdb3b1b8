//! From slices to rows of bars.

use std::collections::BTreeMap;

use super::super::{Kind, Slice, Trace, Track, TrackKind};
use super::DrawOptions;
use super::texts::{phase_texts, run_texts};

/// Look of a bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Look {
    Run,
    Wait,
    Copy,
    Cp,
    Mma,
    Commit,
    LdSt,
    EvenPhase,
    OddPhase,
}

/// A stretch of a row.
#[derive(Debug)]
pub(super) struct Bar {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) look: Look,
    /// Texts for it, the longest first: the first that fits is shown.
    pub(super) texts: Vec<String>,
    /// Completions within it.
    pub(super) marks: Vec<u64>,
    /// Number of the row's line that the bar stands in.
    pub(super) line: usize,
    /// Slices that it stands for.
    slices: Vec<usize>,
}

/// A row: bars that overlap stand in lines below each other.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) label: String,
    pub(super) bars: Vec<Bar>,
    pub(super) lines: usize,
}

#[derive(Debug)]
pub(super) struct Section {
    pub(super) heading: String,
    pub(super) rows: Vec<Row>,
}

/// Start or end of an arrow: row, line, step.
pub(super) type End = (usize, usize, u64);

#[derive(Debug)]
pub(super) struct Picture {
    pub(super) sections: Vec<Section>,
    /// From a completion to a warp that waited for it; rows are counted over all sections.
    pub(super) arrows: Vec<(End, End)>,
}

impl Picture {
    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.sections.iter().flat_map(|s| &s.rows)
    }
}

struct Source<'a> {
    trace: &'a Trace,
    options: &'a DrawOptions,
    range: (u64, u64),
}

pub(super) fn picture(
    trace: &Trace,
    options: &DrawOptions,
    ctas: &[u32],
    range: (u64, u64),
) -> Picture {
    let source = Source {
        trace,
        options,
        range,
    };
    let mut sections = Vec::new();
    for cta in ctas {
        let place = match trace.ctas.get(cta) {
            Some([x, y, z]) if ctas.len() > 1 => format!("CTA ({x}, {y}, {z}): "),
            _ => String::new(),
        };
        for (heading, rows) in [
            ("warps", source.warps(*cta)),
            (
                "copies in flight, by the mbarrier they signal",
                source.copies(*cta),
            ),
            ("tcgen05 operations in flight", source.tensor(*cta)),
            ("wgmma operations in flight", source.wgmma(*cta)),
            ("mbarrier phases", source.barriers(*cta)),
        ] {
            if !rows.is_empty() {
                sections.push(Section {
                    heading: format!("{place}{heading}"),
                    rows,
                });
            }
        }
    }
    let mut picture = Picture {
        sections,
        arrows: Vec::new(),
    };
    picture.arrows = source.arrows(&picture);
    picture
}

impl Source<'_> {
    /// Tracks of a kind, by their index.
    fn tracks(&self, cta: u32, kind: TrackKind) -> Vec<(usize, &Track)> {
        let all = self.trace.tracks.iter().enumerate();
        let mut list: Vec<_> = all
            .filter(|(_, t)| t.cta == cta && t.kind == kind)
            .collect();
        list.sort_by_key(|(_, t)| t.index);
        list
    }

    /// Slices of a track that the picture shows, by their beginning.
    fn slices(&self, track: usize) -> Vec<(usize, &Slice)> {
        let (from, to) = self.range;
        let all = self.trace.slices.iter().enumerate();
        let mut list: Vec<_> = all
            .filter(|(_, s)| s.track == track && s.start < to && s.end > from)
            .collect();
        list.sort_by_key(|(i, s)| (s.start, *i));
        list
    }

    fn barrier_label(&self, at: u64) -> String {
        let given = self.options.labels.get(&format!("0x{at:x}"));
        given.cloned().unwrap_or_else(|| format!("+0x{at:x}"))
    }

    fn warps(&self, cta: u32) -> Vec<Row> {
        let shown =
            |t: &Track| self.options.warps.is_empty() || self.options.warps.contains(&t.index);
        let tracks = self.tracks(cta, TrackKind::Warp).into_iter();
        tracks
            .filter(|(_, t)| shown(t))
            .map(|(i, t)| {
                let label = self.options.labels.get(&t.name).unwrap_or(&t.name);
                let bars = self.slices(i).into_iter().map(|(i, s)| {
                    let (look, texts) = if s.kind == Kind::Wait {
                        (Look::Wait, self.wait_texts(&s.name))
                    } else {
                        (Look::Run, run_texts(&s.name))
                    };
                    bar(i, s, look, texts)
                });
                row(label.clone(), bars.collect())
            })
            .collect()
    }

    /// With the names that barriers were given.
    fn wait_texts(&self, name: &str) -> Vec<String> {
        let Some((_, rest)) = name.split_once("barrier +0x") else {
            return vec![format!("waits: {name}"), name.to_string()];
        };
        let (address, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let label = u64::from_str_radix(address, 16)
            .map_or_else(|_| address.to_string(), |at| self.barrier_label(at));
        vec![
            format!("waits for {label}, {rest}"),
            format!("{label}, {rest}"),
            label,
        ]
    }

    fn copies(&self, cta: u32) -> Vec<Row> {
        let mut by_barrier = BTreeMap::<_, Vec<(usize, &Slice)>>::new();
        for (track, _) in self.tracks(cta, TrackKind::Copies) {
            for (i, s) in self.slices(track) {
                by_barrier.entry(signals(s)).or_default().push((i, s));
            }
        }
        let rows = by_barrier.into_iter();
        rows.map(|(barrier, list)| {
            let label = match barrier {
                Some((owner, at)) if owner == u64::from(cta) => {
                    format!("→ {}", self.barrier_label(at))
                }
                Some((owner, at)) => format!("→ {} of CTA {owner}", self.barrier_label(at)),
                None => "in groups".to_string(),
            };
            // One bar for all operations that are in flight for one phase.
            let mut groups: Vec<Vec<(usize, &Slice)>> = Vec::new();
            for (i, s) in list {
                let joins = groups
                    .last()
                    .is_some_and(|g| barrier.is_some() && g.iter().any(|(_, o)| o.end > s.start));
                match groups.last_mut() {
                    Some(g) if joins => g.push((i, s)),
                    _ => groups.push(vec![(i, s)]),
                }
            }
            let bars = groups.iter().map(|g| {
                let bytes: u64 = g.iter().filter_map(|(_, s)| s.number("bytes")).sum();
                let copies = g.iter().filter(|(_, s)| s.kind == Kind::Copy).count();
                let texts = match copies {
                    0 => vec![
                        format!("{} arrivals after copies", g.len()),
                        "arrivals".into(),
                    ],
                    1 => vec![format!("copy, {bytes} B"), format!("{bytes} B")],
                    n => vec![format!("{n} copies, {bytes} B"), format!("{bytes} B")],
                };
                group(g, Look::Copy, texts)
            });
            row(label, bars.collect())
        })
        .collect()
    }

    /// A row for each warp.
    fn wgmma(&self, cta: u32) -> Vec<Row> {
        let mut by_warp = BTreeMap::<_, Vec<Bar>>::new();
        for (track, _) in self.tracks(cta, TrackKind::Wgmma) {
            for (i, s) in self.slices(track) {
                let texts = vec![s.name.clone(), "wgmma".to_string()];
                let bar = bar(i, s, Look::Mma, texts);
                by_warp.entry(s.number("warp")).or_default().push(bar);
            }
        }
        let label = |warp: Option<u64>| warp.map_or(String::new(), |w| format!("warp {w}"));
        let rows = by_warp.into_iter();
        rows.map(|(warp, bars)| row(label(warp), bars)).collect()
    }

    fn tensor(&self, cta: u32) -> Vec<Row> {
        let mut rows = Vec::new();
        let tracks = self.tracks(cta, TrackKind::Tensor);
        let all: Vec<_> = tracks.iter().flat_map(|(t, _)| self.slices(*t)).collect();
        for (label, look, kinds) in [
            ("cp", Look::Cp, &[Kind::Cp][..]),
            ("mma", Look::Mma, &[Kind::Mma]),
            ("commit", Look::Commit, &[Kind::Commit]),
            ("ld, st", Look::LdSt, &[Kind::Ld, Kind::St]),
        ] {
            let bars: Vec<Bar> = stages(&all)
                .iter()
                .filter_map(|stage| {
                    let mine: Vec<_> = stage
                        .iter()
                        .filter(|(_, s)| kinds.contains(&s.kind))
                        .copied()
                        .collect();
                    let (_, first) = mine.first()?;
                    let texts = match first.kind {
                        Kind::Commit => vec![self.commit_text(first, cta)],
                        Kind::Cp => vec![format!("{} cp", mine.len())],
                        Kind::Ld | Kind::St => vec![first.name.clone(), label.to_string()],
                        _ => vec![
                            format!("{} × {}", mine.len(), first.name),
                            format!("{} mma", mine.len()),
                        ],
                    };
                    Some(group(&mine, look, texts))
                })
                .collect();
            if !bars.is_empty() {
                rows.push(row(label.to_string(), bars));
            }
        }
        rows
    }

    fn commit_text(&self, s: &Slice, cta: u32) -> String {
        match signals(s) {
            Some((owner, at)) if owner == u64::from(cta) => {
                format!("→ {}", self.barrier_label(at))
            }
            Some((owner, at)) => format!("→ {} of CTA {owner}", self.barrier_label(at)),
            None => s.name.clone(),
        }
    }

    fn barriers(&self, cta: u32) -> Vec<Row> {
        let tracks = self.tracks(cta, TrackKind::Barrier).into_iter();
        tracks
            .map(|(i, t)| {
                let bars = self.slices(i).into_iter().map(|(i, s)| {
                    let look = match s.number("parity") {
                        Some(1) => Look::OddPhase,
                        _ => Look::EvenPhase,
                    };
                    let texts = phase_texts(s);
                    bar(i, s, look, texts)
                });
                row(self.barrier_label(t.index), bars.collect())
            })
            .collect()
    }

    fn arrows(&self, picture: &Picture) -> Vec<(End, End)> {
        let mut places: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for (i, r) in picture.rows().enumerate() {
            for b in &r.bars {
                places.extend(b.slices.iter().map(|s| (*s, (i, b.line))));
            }
        }
        let (from, to) = self.range;
        let flows = self.trace.flows.iter();
        flows
            .filter_map(|f| {
                let (a, b) = (places.get(&f.from)?, places.get(&f.to)?);
                let (left, right) = (&self.trace.slices[f.from], &self.trace.slices[f.to]);
                let inside = left.end >= from && right.start <= to;
                inside.then_some((
                    (a.0, a.1, left.end.min(right.start)),
                    (b.0, b.1, right.start),
                ))
            })
            .collect()
    }
}

/// The object that an operation signals: its CTA and address.
fn signals(s: &Slice) -> Option<(u64, u64)> {
    let first = s.details.get("signals")?.get(0)?;
    Some((first.get(0)?.as_u64()?, first.get(1)?.as_u64()?))
}

/// Operations of one stage of a pipeline: a new one begins behind a commit, and with the first
/// copy behind an MMA. Loads and stores stand alone.
fn stages<'a>(all: &[(usize, &'a Slice)]) -> Vec<Vec<(usize, &'a Slice)>> {
    let mut open: BTreeMap<Option<u64>, Vec<(usize, &Slice)>> = BTreeMap::new();
    let mut done = Vec::new();
    for (i, s) in all {
        if matches!(s.kind, Kind::Ld | Kind::St) {
            done.push(vec![(*i, *s)]);
            continue;
        }
        let stage = open.entry(s.number("warp")).or_default();
        let last = stage.last().map(|(_, s)| s.kind);
        let new = match (last, s.kind) {
            (Some(Kind::Commit), kind) => kind != Kind::Commit,
            (Some(Kind::Mma), Kind::Cp) => true,
            _ => false,
        };
        if new {
            done.push(std::mem::take(stage));
        }
        stage.push((*i, *s));
    }
    done.extend(open.into_values());
    done
}

fn bar(i: usize, s: &Slice, look: Look, texts: Vec<String>) -> Bar {
    Bar {
        start: s.start,
        end: s.end,
        look,
        texts,
        marks: Vec::new(),
        line: 0,
        slices: vec![i],
    }
}

fn group(g: &[(usize, &Slice)], look: Look, texts: Vec<String>) -> Bar {
    let mut marks: Vec<u64> = g.iter().map(|(_, s)| s.end).collect();
    marks.sort_unstable();
    let end = marks.pop().unwrap_or(0);
    marks.dedup();
    Bar {
        start: g.iter().map(|(_, s)| s.start).min().unwrap_or(0),
        end,
        look,
        texts,
        marks,
        line: 0,
        slices: g.iter().map(|(i, _)| *i).collect(),
    }
}

/// Puts bars that overlap into lines of their own.
fn row(label: String, mut bars: Vec<Bar>) -> Row {
    bars.sort_by_key(|b| b.start);
    let mut ends: Vec<u64> = Vec::new();
    for b in &mut bars {
        b.line = ends
            .iter()
            .position(|e| *e <= b.start)
            .unwrap_or(ends.len());
        match ends.get_mut(b.line) {
            Some(e) => *e = b.end,
            None => ends.push(b.end),
        }
    }
    Row {
        label,
        bars,
        lines: ends.len().max(1),
    }
}
