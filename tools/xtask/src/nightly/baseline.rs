//! Measurements of a GPU model from before: sessions, which are runs of different starts of a machine, each with the
//! shares of the ceiling that every round had. Committed in `benches/baseline/`, a file a model.
//!
//! Shares move from GPU to GPU of a model, and from start to start, by as much as a regression that matters. So the
//! baseline is the second, coarse check. It finds what the comparison with the last good program cannot see: a fault of
//! the first night, or a loss bit by bit.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nvfp4_gemv_documents::document::{Device, Document};
use nvfp4_gemv_documents::statistics::median;
use serde::{Deserialize, Serialize};

use crate::bench::view::{key, shares};
use crate::workspace::Workspace;

/// 3: a session has one share of a result, the median of its rounds.
const SCHEMA: &str = "nvfp4-gemv/baseline/3";

/// The newest are kept: machines and drivers change.
pub(super) const MOST_SESSIONS: usize = 5;

/// The share of the ceiling that each path had on each problem.
type Shares = BTreeMap<String, f64>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Baseline {
    schema: String,
    /// The device that all sessions ran on: [`identity`].
    device: String,
    suite: String,
    /// The oldest first.
    pub(super) sessions: Vec<Session>,
    /// The share of each session, or nothing of one that did not have the result.
    shares: BTreeMap<String, Vec<Option<f64>>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Session {
    date_utc: String,
    host: Option<String>,
    git_commit: Option<String>,
    crate_version: String,
    driver: Option<String>,
}

/// How much longer than in the worst session a result may take, as a part. Cold shares of three H200 differed by
/// 0.8% (the median of 280 results) and by up to 3.9%.
pub(super) const COARSE: f64 = 0.10;

/// A document's figures beside a baseline's.
#[derive(Debug)]
pub(super) struct Coarse {
    pub(super) far: Vec<Far>,
    /// Results of the newest session that the document lacks, where both are of one suite.
    pub(super) missing: Vec<String>,
    /// Sessions that were looked up.
    pub(super) sessions: usize,
}

/// A result that is far below what the baseline has.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Far {
    pub(super) key: String,
    /// Shares of the ceiling: the worst session's, and tonight's.
    pub(super) worst: f64,
    pub(super) now: f64,
}

/// The device's part that makes measurements comparable: the model, and the number of threads of a CPU.
pub(super) fn identity(device: &Device) -> String {
    match device.threads {
        Some(threads) => format!("{}, {threads} threads", device.name),
        None => device.name.clone(),
    }
}

/// The file of a model's baseline.
pub(super) fn default_file(workspace: &Workspace, device: &Device) -> PathBuf {
    let name = format!("{}.json", crate::write::slug(&identity(device)));
    workspace.root().join("benches/baseline").join(name)
}

/// The shares of a document, by path and problem.
fn shares_of(document: &Document) -> Shares {
    let cases = document.cases.iter();
    let all = cases.flat_map(|case| {
        case.paths.iter().map(move |path| {
            let share = median(&shares(case, path));
            (key(case, path), (share * 1e4).round() / 1e4)
        })
    });
    all.collect()
}

impl Baseline {
    /// Without a session yet.
    pub(super) fn new(document: &Document) -> Self {
        Self {
            schema: SCHEMA.into(),
            device: identity(&document.device),
            suite: document.suite.clone(),
            sessions: Vec::new(),
            shares: BTreeMap::new(),
        }
    }

    /// Reads the baseline; nothing where there is no file.
    pub(super) fn read(file: &Path) -> Result<Option<Self>> {
        let text = crate::write::read_if_there(file)?;
        let baseline = text.map(|text| Self::parse(&text)).transpose();
        baseline.with_context(|| format!("the baseline {} cannot be used", file.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let value: serde_json::Value = serde_json::from_str(text).context("it is no JSON")?;
        if value["schema"] != SCHEMA {
            bail!("its schema is {}, expected {SCHEMA:?}", value["schema"]);
        }
        let baseline: Self = serde_json::from_value(value)?;
        if baseline.sessions.is_empty() {
            bail!("it has no session");
        }
        for (key, shares) in &baseline.shares {
            if shares.len() != baseline.sessions.len() {
                bail!("{key}: not a share for each session");
            }
            if !shares.iter().flatten().all(|share| *share > 0.0) {
                bail!("{key}: a share is not positive");
            }
        }
        Ok(baseline)
    }

    /// Whether a document's numbers may be compared with these.
    fn check(&self, document: &Document) -> Result<()> {
        let device = identity(&document.device);
        if self.device != device {
            bail!("the baseline is of {}, and this is {device}", self.device);
        }
        Ok(())
    }

    /// The results whose time, as a multiple of the ceiling's, is more than [`COARSE`] above the worst session's, and
    /// those that are not there any more.
    ///
    /// # Errors
    /// A document of another device, and one that has no result in common with the baseline.
    pub(super) fn look_up(&self, document: &Document) -> Result<Coarse> {
        self.check(document)?;
        let now = shares_of(document);
        let (mut far, mut common) = (Vec::new(), 0);
        for (key, now) in &now {
            let sessions = self.shares.get(key).into_iter().flatten();
            let Some(worst) = sessions.flatten().copied().reduce(f64::min) else {
                continue;
            };
            common += 1;
            let (key, now) = (key.clone(), *now);
            if worst / now > 1.0 + COARSE {
                far.push(Far { key, worst, now });
            }
        }
        if common == 0 {
            bail!(
                "none of the {} results measured is in the baseline",
                now.len()
            );
        }
        let newest = |shares: &[Option<f64>]| shares.last().is_some_and(Option::is_some);
        let mut missing = Vec::new();
        if self.suite == document.suite {
            let known = self.shares.iter().filter(|(_, shares)| newest(shares));
            let gone = known.filter(|(key, _)| !now.contains_key(*key));
            missing.extend(gone.map(|(key, _)| key.clone()));
        }
        Ok(Coarse {
            far,
            missing,
            sessions: self.sessions.len(),
        })
    }

    /// One more session; the oldest goes where there are too many.
    pub(super) fn add(&mut self, document: &Document) -> Result<()> {
        self.check(document)?;
        if !document.slowed_percent.is_empty() {
            bail!("a run that was slowed down on purpose is no baseline");
        }
        if self.suite != document.suite {
            bail!(
                "the baseline is of the suite {:?}, and this run of {:?}",
                self.suite,
                document.suite
            );
        }
        self.sessions.push(Session {
            date_utc: document.date_utc.clone(),
            host: document.host.clone(),
            git_commit: document.git_commit.clone(),
            crate_version: document.crate_version.clone(),
            driver: document.device.driver.clone(),
        });
        let now = shares_of(document);
        let known = self.sessions.len() - 1;
        for key in now.keys() {
            let shares = self.shares.entry(key.clone());
            shares.or_insert_with(|| vec![None; known]);
        }
        let surplus = self.sessions.len().saturating_sub(MOST_SESSIONS);
        self.sessions.drain(..surplus);
        for (key, shares) in &mut self.shares {
            shares.push(now.get(key).copied());
            shares.drain(..surplus);
        }
        self.shares
            .retain(|_, shares| shares.iter().any(Option::is_some));
        Ok(())
    }

    /// A line a session and result, so that a change of a committed file can be read.
    pub(super) fn write(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string(self)?;
        let text = text
            .replace("],\"", "],\n\"")
            .replace(":{\"", ":{\n\"")
            .replace(",{\"date_utc\"", ",\n{\"date_utc\"");
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        crate::write::whole(file, &(text + "\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::testing;

    fn baseline() -> Baseline {
        let mut baseline = Baseline::new(&testing::document());
        baseline.add(&testing::document()).unwrap();
        baseline
    }

    #[test]
    fn a_file_comes_back_and_the_oldest_session_goes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/folder/x.json");
        assert_eq!(Baseline::read(&file).unwrap(), None);
        let mut baseline = baseline();
        for day in 1..=6 {
            let mut document = testing::document();
            document.date_utc = format!("2026-12-0{day}");
            baseline.add(&document).unwrap();
        }
        assert_eq!(baseline.sessions.len(), MOST_SESSIONS);
        assert_eq!(baseline.sessions[0].date_utc, "2026-12-02");
        baseline.write(&file).unwrap();
        assert_eq!(Baseline::read(&file).unwrap(), Some(baseline));
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines > MOST_SESSIONS + 3, "{lines}");
    }

    #[test]
    fn what_is_no_baseline_is_refused_with_a_reason() {
        let good = serde_json::to_string(&baseline()).unwrap();
        let error = |text: String| format!("{:#}", Baseline::parse(&text).unwrap_err());
        assert!(error(good[..good.len() / 2].into()).contains("no JSON"));
        assert!(error("{}".into()).contains("schema"));
        assert!(error(good.replace("baseline/3", "baseline/9")).contains("baseline/9"));
        let mut empty = baseline();
        empty.sessions.clear();
        assert!(error(serde_json::to_string(&empty).unwrap()).contains("no session"));
        for (shares, why) in [
            (vec![Some(0.5); 2], "for each session"),
            (vec![Some(0.0)], "not positive"),
        ] {
            let mut bad = baseline();
            bad.shares.insert("x".into(), shares);
            assert!(error(serde_json::to_string(&bad).unwrap()).contains(why));
        }
    }

    #[test]
    fn other_devices_suites_and_slowed_runs_are_not_added() {
        let mut baseline = baseline();
        let mut with = |change: fn(&mut Document)| {
            let mut document = testing::document();
            change(&mut document);
            baseline.add(&document).unwrap_err().to_string()
        };
        assert!(with(|d| d.device.name = "B200".into()).contains("and this is B200"));
        assert!(with(|d| d.suite = "quick".into()).contains("\"quick\""));
        let slowed = with(|d| d.slowed_percent = [("cpu".into(), 10)].into());
        assert!(slowed.contains("on purpose"));
        assert_eq!(baseline.sessions.len(), 1);
    }

    /// A result that comes or goes has nothing in the other sessions.
    #[test]
    fn results_come_and_go() {
        let mut baseline = baseline();
        let mut other = testing::document();
        other.cases[0].paths.remove(0);
        other.cases[0].m += 1;
        baseline.add(&other).unwrap();
        let all: Vec<_> = baseline.shares.values().cloned().collect();
        let old = |of: &&Vec<Option<f64>>| matches!(of[..], [Some(_), None]);
        let new = |of: &&Vec<Option<f64>>| matches!(of[..], [None, Some(_)]);
        assert_eq!(all.iter().filter(old).count(), 3, "{all:?}");
        assert_eq!(all.iter().filter(new).count(), 2, "{all:?}");
        let document = testing::document();
        assert_eq!(baseline.look_up(&document).unwrap().missing.len(), 2);
        for _ in 0..MOST_SESSIONS {
            baseline.add(&other).unwrap();
        }
        assert_eq!(baseline.shares.len(), all.len() - 3);
    }

    #[test]
    fn a_model_has_a_file() {
        let workspace = Workspace::locate().unwrap();
        let mut device = testing::document().device;
        let name = |device: &Device| {
            let file = default_file(&workspace, device);
            file.file_name().unwrap().to_str().unwrap().to_owned()
        };
        device.name = "NVIDIA H200".into();
        assert_eq!(name(&device), "nvidia-h200.json");
        device.name = "AMD EPYC (tm) 9".into();
        device.threads = Some(2);
        assert_eq!(name(&device), "amd-epyc-tm-9-2-threads.json");
    }
}
