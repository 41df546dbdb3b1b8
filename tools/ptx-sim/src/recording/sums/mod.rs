//! Recorded sums, and the way in which an instruction adds: the rules that give every one of the sums, and how far
//! results are off, in roundings. `probes/sums.cpp` makes the sums.

mod machine;

use std::collections::BTreeMap;

use serde::Serialize;

pub use self::machine::{Cut, Exponents, Machine};
use self::machine::{NONE, Product, Terms, UNIT};
use super::{Recording, RecordingError};
use crate::models::sums::{Silicon, nvfp4};
use crate::softfloat::{E2M1, E4M3};

/// Names of the series of `probes/sums.h`, in the order of their numbers.
const SERIES: [&str; 10] = [
    "padding", "survives", "groups", "final", "loss", "nominal", "random", "exact", "far", "idle",
];

/// The number of the series whose sums every order gives exactly.
const EXACT: usize = 7;

/// Cases of sums, each with the beginning of its tensors' names. Recordings from before `sums_far` have the first.
const CASES: [(&str, &str); 2] = [("sums", "in/"), ("sums_far", "in/far.")];

/// A sum, and its result.
#[derive(Debug)]
struct Row {
    series: usize,
    terms: Terms,
    result: f32,
}

/// Recorded sums.
#[derive(Debug)]
pub struct Sums {
    rows: Vec<Row>,
    columns_agree: bool,
}

/// Conclusions from recorded sums.
#[derive(Debug, Serialize)]
pub struct Verdict {
    /// Number of sums.
    pub sums: usize,
    /// Whether all columns that were given the same numbers have the same results.
    pub columns_agree: bool,
    /// Sums that every order gives exactly, and which were not given so. Anything but 0 says that operands are not
    /// where they are believed to be, and that nothing else here counts.
    pub exact_sums_wrong: usize,
    /// Results that are not numbers.
    pub not_finite: usize,
    /// The way to add by which all results come out; where there is none, the one by which most do.
    pub machine: Machine,
    /// Number of results that come out by `machine`.
    pub explained: usize,
    /// Other ways that explain as much, but for those that differ in nothing that was tried: how many.
    pub as_good: usize,
    /// Number of results that come out by the published rule of FP4 with block scales.
    pub by_published: usize,
    /// Whether `machine` is that rule, and no other explains as much: then the recording says how the instruction adds.
    pub is_published: bool,
    /// Number of successive roundings to f32 that would explain the error of the worst result: a bound must allow an
    /// instruction at least so many.
    pub roundings_at_least: u32,
    /// The worst of each series, in roundings.
    pub roundings: BTreeMap<&'static str, f64>,
}

/// Value in units of 2^-9, and exponent, of a UE4M3 scale.
fn scale(byte: u32) -> (i128, i32) {
    let x = E4M3.to_f64(byte & 0x7f);
    ((x * 512.0) as i64 as i128, E4M3.exponent(x))
}

/// Value in halves, and exponent, of an E2M1 code.
fn code(bits: u32) -> (i128, i32) {
    let x = E2M1.to_f64(bits);
    ((x * 2.0) as i64 as i128, E2M1.exponent(x))
}

/// The position of the top bit; the smallest of all for zero, which is no term.
fn top(x: i128) -> i32 {
    x.unsigned_abs().checked_ilog2().map_or(0, |top| top as i32)
}

fn product(a: u32, b: u32, scale_a: u32, scale_b: u32) -> Product {
    let ((a, ea), (b, eb)) = (code(a), code(b));
    let ((sa, esa), (sb, esb)) = (scale(scale_a), scale(scale_b));
    let scales = match sa * sb {
        0 => NONE,
        _ => esa + esb,
    };
    Product {
        scales,
        // Halves twice, and 2^-9 twice.
        value: (a * b * sa * sb) << (UNIT - 20),
        factors: ea + eb + esa + esb,
        scaled: top(a * sa) + top(b * sb) - 20,
        codes: top(a * b) - 2 + esa + esb,
    }
}

/// An f32 in fixed point, if it is one there.
fn fixed(x: f32) -> Option<i128> {
    let scaled = f64::from(x) * 2f64.powi(UNIT);
    (scaled.is_finite() && scaled.abs() < 2f64.powi(100) && scaled.fract() == 0.0)
        .then_some(scaled as i128)
}

impl Sums {
    /// The sums of a recording, or nothing if it has none.
    pub fn of(recording: &Recording<'_>) -> Result<Option<Self>, RecordingError> {
        let mut sums = Self {
            rows: Vec::new(),
            columns_agree: true,
        };
        for (case, from) in CASES {
            let found = recording.cases.iter().find(|of| of.name == case);
            if found.is_some_and(|case| case.status == "ok") {
                sums.add(recording, case, from)?;
            }
        }
        Ok((!sums.rows.is_empty()).then_some(sums))
    }

    /// Adds the sums of a case, whose tensors' names begin with `from`.
    fn add(
        &mut self,
        recording: &Recording<'_>,
        case: &str,
        from: &str,
    ) -> Result<(), RecordingError> {
        let input = |name: &str| format!("{from}{name}");
        let labels = recording.words(&input("labels"))?;
        let rows = labels.len();
        let of = |name: &str, words: usize| {
            let tensor = recording.words(&input(name))?;
            match tensor.len() == words {
                true => Ok(tensor),
                false => Err(wrong(&input(name), "not as long as the labels say")),
            }
        };
        let groups = rows / 16;
        let (a, scales_a) = (of("a", 8 * rows)?, of("scales_a", rows)?);
        let (b, scales_b) = (of("b", 8 * groups)?, of("scales_b", groups)?);
        let c = of("c", rows)?;
        let out = recording.words(&format!("{case}/out"))?;
        if rows == 0 || rows % 16 != 0 || out.len() % rows != 0 || out.is_empty() {
            return Err(wrong(case, "its results are not as long as the labels say"));
        }
        let columns = out.len() / rows;
        for (row, label) in labels.iter().enumerate() {
            let results = &out[row * columns..(row + 1) * columns];
            self.columns_agree &= results.iter().all(|x| x == &results[0]);
            let nibble = |words: &[u32], k: usize| words[k / 8] >> (4 * (k % 8)) & 15;
            let products = std::array::from_fn(|k| {
                let byte = |word: u32| word >> (8 * (k / 16)) & 0xff;
                product(
                    nibble(&a[8 * row..], k),
                    nibble(&b[row / 16 * 8..], k),
                    byte(scales_a[row]),
                    byte(scales_b[row / 16]),
                )
            });
            let c = fixed(f32::from_bits(c[row]));
            let c = c.ok_or_else(|| wrong(&input("c"), "a number that no sum here has"))?;
            let series = (label >> 24) as usize;
            if series >= SERIES.len() {
                return Err(wrong(&input("labels"), "an unknown series"));
            }
            self.rows.push(Row {
                series,
                terms: Terms { products, c },
                result: f32::from_bits(results[0]),
            });
        }
        Ok(())
    }

    /// Draws the conclusions from the sums.
    pub fn judge(&self) -> Verdict {
        // Any data first: most rules fail there at once.
        let mut rows: Vec<&Row> = self.rows.iter().filter(|row| row.series != 0).collect();
        rows.sort_by_key(|row| SERIES[row.series] != "random");
        let machines = Machine::all();
        let whole: Vec<&Machine> = machines
            .iter()
            .filter(|machine| rows.iter().all(|row| row.is_by(machine)))
            .collect();
        let (machine, explained, as_good) = match whole[..] {
            [first, ref others @ ..] => (*first, rows.len(), others.len()),
            [] => most(&machines, &rows),
        };
        let mut roundings: BTreeMap<&'static str, f64> = BTreeMap::new();
        for row in &rows {
            let worst = roundings.entry(SERIES[row.series]).or_default();
            *worst = worst.max(row.roundings());
        }
        let wrong = |row: &&&Row| row.series == EXACT && row.roundings() != 0.0;
        let published = published();
        Verdict {
            by_published: match machine == published {
                true => explained,
                false => rows.iter().filter(|row| row.is_by(&published)).count(),
            },
            is_published: machine == published && explained == rows.len() && as_good == 0,
            sums: rows.len(),
            columns_agree: self.columns_agree,
            exact_sums_wrong: rows.iter().filter(wrong).count(),
            not_finite: rows.iter().filter(|row| !row.result.is_finite()).count(),
            machine,
            explained,
            as_good,
            // The number is converted with `as`, so that an infinite one stays large.
            roundings_at_least: roundings.values().fold(0f64, |a, b| a.max(*b)).ceil() as u32,
            roundings,
        }
    }
}

/// The published rule of FP4 with block scales, which is the same for both kinds of Blackwells.
fn published() -> Machine {
    let rule = nvfp4(Silicon::Blackwell).expect("the model has this instruction");
    Machine::of_rule(&rule)
}

/// The rule that explains most results: of a sample first, which finds those that are worth all of them.
fn most(machines: &[Machine], rows: &[&Row]) -> (Machine, usize, usize) {
    let count = |machine: &Machine, step: usize| {
        let sample = rows.iter().step_by(step);
        sample.filter(|row| row.is_by(machine)).count()
    };
    let mut ranked: Vec<(usize, &Machine)> = machines.iter().map(|m| (count(m, 97), m)).collect();
    ranked.sort_by_key(|(explained, _)| std::cmp::Reverse(*explained));
    let best = ranked.iter().take(32).map(|(_, m)| (count(m, 1), *m));
    let mut best: Vec<(usize, &Machine)> = best.collect();
    best.sort_by_key(|(explained, _)| std::cmp::Reverse(*explained));
    let (explained, machine) = best[0];
    let as_good = best.iter().filter(|(n, _)| *n == explained).count() - 1;
    (*machine, explained, as_good)
}

impl Row {
    fn is_by(&self, machine: &Machine) -> bool {
        machine.sum(&self.terms) == self.result
    }

    /// The error, in parts of 2^-24 of the magnitude of all terms; blocks of zeros count as the bounds count them.
    fn roundings(&self) -> f64 {
        let Some(result) = fixed(self.result) else {
            return f64::INFINITY;
        };
        let error = (result - self.terms.exact()).abs() as f64;
        match self.terms.magnitude() {
            0 if error == 0.0 => 0.0,
            magnitude => error / magnitude as f64 * 2f64.powi(24),
        }
    }
}

fn wrong(name: &str, what: &str) -> RecordingError {
    RecordingError::Tensor {
        name: name.into(),
        what: what.into(),
    }
}
