//! Ranks that are processes of this machine, with the environments that launchers give them. The processes meet, and
//! anything that keeps them from meeting is an error. No GPU is needed.

use std::net::TcpListener;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use nvfp4_gemv_parallel::ranks::{Launcher, Ranks, RanksError};
use nvfp4_gemv_trials::{nothing, trials};

/// Variable of a process that this one starts: for how many milliseconds the process waits for the others.
const TIMEOUT: &str = "NVFP4_GEMV_TEST_TIMEOUT";
/// Timeout of ranks that all come. None waits for so long.
const LONG: Duration = Duration::from_secs(120);
/// Timeout of ranks that nobody joins, however long they wait.
const SHORT: Duration = Duration::from_millis(100);

/// Bytes of an id: as many as NCCL's ids have.
const ID: usize = 128;

fn main() -> ExitCode {
    if let Ok(timeout) = std::env::var(TIMEOUT) {
        let timeout = timeout.parse().expect("milliseconds");
        match rank(Duration::from_millis(timeout)) {
            Ok(id) => println!("{id:?}"),
            Err(error) => println!("{error:?}"),
        }
        return ExitCode::SUCCESS;
    }
    nvfp4_gemv_trials::run(trials![
        nothing;
        processes_of_every_launcher_get_the_id_of_rank_0,
        processes_that_were_told_of_other_worlds_are_refused,
        two_processes_of_one_number_are_refused,
        a_process_that_does_not_come_ends_the_wait,
    ])
}

/// Work of a started process: rank 0 makes an id, and all ranks return it.
fn rank(timeout: Duration) -> Result<Vec<u8>, RanksError> {
    let ranks = Ranks::of_environment()?;
    let id: Vec<u8> = match ranks.rank() {
        0 => std::iter::repeat_with(|| fastrand::u8(..))
            .take(ID)
            .collect(),
        _ => Vec::new(),
    };
    ranks.share(&id, timeout)
}

/// Facts that a launcher tells a process of one host: its rank, and the number of ranks.
#[derive(Clone, Copy)]
struct Told {
    rank: usize,
    ranks: usize,
}

const fn told(rank: usize, ranks: usize) -> Told {
    Told { rank, ranks }
}

/// The variables, as each launcher sets them.
fn variables(launcher: Launcher, Told { rank, ranks }: Told) -> Vec<(&'static str, String)> {
    let (rank, ranks) = (rank.to_string(), ranks.to_string());
    let names: &[&'static str] = match launcher {
        Launcher::Torchrun => &["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
        Launcher::OpenMpi => &[
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ],
        Launcher::Pmi => &["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
        // The last one says that this is no batch script.
        Launcher::Slurm => &[
            "SLURM_PROCID",
            "SLURM_NTASKS",
            "SLURM_LOCALID",
            "SLURM_STEP_ID",
        ],
        Launcher::None => &[],
    };
    let values = [&rank, &ranks].into_iter().cycle().cloned();
    names.iter().copied().zip(values).collect()
}

/// Two ports of which ranks meet at the second one: torchrun itself listens at the first one, as this test does.
struct Ports {
    torchruns: TcpListener,
}

impl Ports {
    fn new() -> Self {
        loop {
            let torchruns = TcpListener::bind("127.0.0.1:0").unwrap();
            let ports = Self { torchruns };
            let next = ports.first().checked_add(1);
            if next.is_some_and(|next| TcpListener::bind(("127.0.0.1", next)).is_ok()) {
                return ports;
            }
        }
    }

    fn first(&self) -> u16 {
        self.torchruns.local_addr().unwrap().port()
    }

    fn variables(&self, launcher: Launcher) -> Vec<(&'static str, String)> {
        let port = match launcher {
            Launcher::Torchrun => {
                return vec![
                    ("MASTER_PORT", self.first().to_string()),
                    ("TORCHELASTIC_USE_AGENT_STORE", "True".into()),
                ];
            }
            _ => self.first() + 1,
        };
        vec![("MASTER_PORT", port.to_string())]
    }
}

/// Output of processes that are started in this order, with nothing else in their environment.
fn run(launcher: Launcher, processes: &[Told], timeout: Duration) -> Vec<String> {
    let ports = Ports::new();
    let started: Vec<_> = processes
        .iter()
        .map(|&told| {
            Command::new(std::env::current_exe().unwrap())
                .env_clear()
                .envs(variables(launcher, told))
                .envs(ports.variables(launcher))
                .env("MASTER_ADDR", "127.0.0.1")
                .env(TIMEOUT, timeout.as_millis().to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let printed = |process: std::process::Child| {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", output.status);
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    started.into_iter().map(printed).collect()
}

fn processes_of_every_launcher_get_the_id_of_rank_0() {
    let launchers = [
        Launcher::Torchrun,
        Launcher::OpenMpi,
        Launcher::Pmi,
        Launcher::Slurm,
    ];
    let mut ids = Vec::new();
    for launcher in launchers {
        for ranks in [2, 4, 8] {
            // Rank 0 comes last.
            let processes: Vec<_> = (0..ranks).rev().map(|rank| told(rank, ranks)).collect();
            let printed = run(launcher, &processes, LONG);
            let id = printed.last().unwrap();
            assert_eq!(id.split(", ").count(), ID, "{launcher}: {id}");
            assert_eq!(printed, vec![id.clone(); ranks], "{launcher}");
            ids.push(id.clone());
        }
    }
    // Each world has its own.
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

/// Output of the rank that noticed an error, and of the ranks that it tells.
fn noticed_and_told(error: RanksError) -> [String; 2] {
    let says = error.to_string();
    [error, RanksError::Refused { says }].map(|error| format!("{error:?}"))
}

fn processes_that_were_told_of_other_worlds_are_refused() {
    for launcher in [Launcher::Torchrun, Launcher::OpenMpi] {
        for (ours, theirs) in [(2, 3), (3, 2)] {
            let printed = run(launcher, &[told(0, ours), told(1, theirs)], LONG);
            let rank = 1;
            let world = RanksError::World { rank, theirs, ours };
            assert_eq!(printed, noticed_and_told(world), "{launcher}");
        }
    }
}

fn two_processes_of_one_number_are_refused() {
    for launcher in [Launcher::Torchrun, Launcher::OpenMpi] {
        let [first, second] = [told(1, 3); 2];
        let printed = run(launcher, &[told(0, 3), first, second], LONG);
        let (rank, why) = (1, "another one is");
        let [noticed, told] = noticed_and_told(RanksError::Rank { rank, why });
        assert_eq!(printed, [noticed, told.clone(), told], "{launcher}");
    }
}

fn a_process_that_does_not_come_ends_the_wait() {
    for launcher in [Launcher::Torchrun, Launcher::OpenMpi] {
        let alone = run(launcher, &[told(0, 3)], SHORT);
        let absent = RanksError::Absent {
            absent: vec![1, 2],
            ranks: 3,
            timeout: SHORT,
        };
        assert_eq!(alone, [format!("{absent:?}")], "{launcher}");
        // Rank 0 is the one that does not come.
        let alone = run(launcher, &[told(2, 3)], SHORT);
        let is_unreachable = alone[0].starts_with("Unreachable { rank: 2, at: \"127.0.0.1:");
        assert!(is_unreachable, "{launcher}: {alone:?}");
    }
}
