use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread::scope;
use std::time::Duration;

use super::meeting::{Host, connect, join};
use super::{Launcher, PORT_VARIABLE, Ranks, RanksError};

type Variables = [(&'static str, &'static str)];

fn of(variables: &Variables) -> Result<Ranks, RanksError> {
    Ranks::of_variables(|name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.to_string())
    })
}

fn without(variables: &Variables, name: &str) -> Vec<(&'static str, &'static str)> {
    let kept = variables.iter().filter(|(known, _)| *known != name);
    kept.copied().collect()
}

const TORCHRUN: &Variables = &[
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("MASTER_ADDR", "h"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
];
const OPEN_MPI: &Variables = &[
    ("OMPI_COMM_WORLD_RANK", "5"),
    ("OMPI_COMM_WORLD_SIZE", "8"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
];
const MPICH: &Variables = &[
    ("PMI_RANK", "5"),
    ("PMI_SIZE", "8"),
    ("MPI_LOCALRANKID", "1"),
    ("MPI_LOCALNRANKS", "4"),
];
const SLURM: &Variables = &[
    ("SLURM_PROCID", "5"),
    ("SLURM_NTASKS", "8"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_STEP_ID", "0"),
];

#[test]
fn every_launcher_says_the_same_in_words_of_its_own() {
    let launchers = [
        (TORCHRUN, Launcher::Torchrun),
        (OPEN_MPI, Launcher::OpenMpi),
        (MPICH, Launcher::Pmi),
        (SLURM, Launcher::Slurm),
    ];
    for (variables, launcher) in launchers {
        let ranks = of(variables).unwrap();
        assert_eq!(ranks.launcher(), launcher);
        assert_eq!(
            (ranks.rank(), ranks.ranks(), ranks.local_rank()),
            (5, 8, 1),
            "{launcher}"
        );
        // Each of the first three is needed.
        for (name, _) in &variables[..3] {
            let error = of(&without(variables, name)).unwrap_err();
            assert!(
                matches!(error, RanksError::Missing { name: missing, .. } if missing == *name),
                "{launcher} without {name}: {error:?}"
            );
        }
    }
    assert_eq!(of(&[]).unwrap(), Ranks::ALONE);
}

#[test]
fn the_innermost_launcher_counts() {
    // torchrun on two hosts, one of it on each, started by srun.
    let both = [
        TORCHRUN,
        &[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")],
        &SLURM[2..],
    ]
    .concat();
    let ranks = of(&both).unwrap();
    assert_eq!((ranks.launcher(), ranks.rank()), (Launcher::Torchrun, 5));
    // A batch script of Slurm is no rank.
    assert_eq!(of(&without(SLURM, "SLURM_STEP_ID")).unwrap(), Ranks::ALONE);
    // Empty is not set.
    assert_eq!(
        of(&[("RANK", ""), ("WORLD_SIZE", "")]).unwrap(),
        Ranks::ALONE
    );
}

#[test]
fn contradictions_are_named() {
    let with = |name: &str, value: &'static str| {
        let changed = TORCHRUN.iter().map(|&(known, old)| match known == name {
            true => (known, value),
            false => (known, old),
        });
        let changed: Vec<_> = changed.collect();
        of(&changed).unwrap_err().to_string()
    };
    assert_eq!(
        with("RANK", "8"),
        "RANK is 8, and must be less than WORLD_SIZE, which is 8"
    );
    assert_eq!(
        with("WORLD_SIZE", "0"),
        "RANK is 5, and must be less than WORLD_SIZE, which is 0"
    );
    assert_eq!(
        with("LOCAL_RANK", "4"),
        "LOCAL_RANK is 4, and must be less than LOCAL_WORLD_SIZE, which is 4"
    );
    assert_eq!(
        with("RANK", "-1"),
        "RANK is \"-1\", and must be a number from 0 on"
    );
    assert!(with("WORLD_SIZE", "99999999999").contains("a number"));
    assert!(with("MASTER_PORT", "0").contains("a port"));
    // The next port is where ranks meet, and there is none.
    assert!(with("MASTER_PORT", "65535").contains("behind which there is none"));
}

#[test]
fn torchruns_own_port_is_left_to_it() {
    let port = |variables: &Variables| of(variables).unwrap().port;
    assert_eq!(port(TORCHRUN), Some(29501));
    assert_eq!(
        port(&without(TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE")),
        Some(29500)
    );
    let named = [TORCHRUN, &[(PORT_VARIABLE, "7")]].concat();
    assert_eq!(port(&named), Some(7));
    assert_eq!(port(OPEN_MPI), None);
}

#[test]
fn a_rank_has_the_gpu_of_its_number() {
    let ranks = of(TORCHRUN).unwrap();
    assert_eq!(ranks.device(4), Ok(1));
    // Where each rank is shown its own alone.
    assert_eq!(ranks.device(1), Ok(0));
    assert_eq!(
        ranks.device(0).unwrap_err().to_string(),
        "this is rank 1 of its host, which needs 2 GPUs, and 0 are visible"
    );
    assert_eq!(Ranks::ALONE.device(1), Ok(0));
    assert!(Ranks::ALONE.device(0).is_err());
}

#[test]
fn where_ranks_meet_must_be_said() {
    let error = of(SLURM).unwrap().share(&[1], LONG).unwrap_err();
    let text = error.to_string();
    for part in ["MASTER_ADDR is not set", "Slurm", PORT_VARIABLE] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Alone, nobody is met.
    assert_eq!(Ranks::ALONE.share(&[1, 2], LONG), Ok(vec![1, 2]));
    let long = vec![0; Ranks::MOST_BYTES + 1];
    assert!(matches!(
        Ranks::ALONE.share(&long, LONG),
        Err(RanksError::TooLong { .. })
    ));
}

const LONG: Duration = Duration::from_secs(600);
const HERE: &str = "127.0.0.1";

/// At any free port.
fn host() -> (Host, u16) {
    let host = Host::open(HERE, 0).unwrap();
    let port = host.port();
    (host, port)
}

#[test]
fn all_ranks_get_what_rank_0_shares() {
    let (host, port) = host();
    // What is no rank does not matter: it says nothing, or something else.
    let mut stranger = TcpStream::connect((HERE, port)).unwrap();
    stranger.write_all(b"GET / HTTP/1.0\r\n\r\n  ").unwrap();
    scope(|scope| {
        let others: Vec<_> = (1..4)
            .map(|rank| scope.spawn(move || join(HERE, port, rank, 4, LONG)))
            .collect();
        assert_eq!(host.share(4, b"an id", LONG), Ok(b"an id".to_vec()));
        for other in others {
            assert_eq!(other.join().unwrap(), Ok(b"an id".to_vec()));
        }
    });
}

/// As it stands in /etc/hosts of some systems, for the machine's own name.
#[cfg(target_os = "linux")]
#[test]
fn rank_0_listens_at_the_loopback_address_that_is_named() {
    const OTHER: &str = "127.0.1.1";
    let host = Host::open(OTHER, 0).unwrap();
    TcpStream::connect((OTHER, host.port())).unwrap();
}

/// Tried as often as a rank that waits for minutes would: among so many ports as systems give to connections, the one that
/// is tried is found.
#[test]
fn a_rank_that_waits_does_not_take_itself_for_rank_0() {
    let free = TcpListener::bind((HERE, 0)).unwrap();
    // Some systems give odd ports to those who listen, and even ones to those who connect, or the other way round.
    let port = free.local_addr().unwrap().port() ^ 1;
    for _ in 0..60_000 {
        if let Ok(connection) = connect(HERE, port) {
            assert_ne!(connection.local_addr().unwrap().port(), port);
        }
    }
}

/// What the environment says leads there, too.
#[test]
fn a_rank_of_a_launcher_meets_where_its_variables_say() {
    let (host, port) = host();
    let variables = [
        ("PMI_RANK", "1".to_string()),
        ("PMI_SIZE", "2".to_string()),
        ("PMI_LOCAL_RANK", "0".to_string()),
        ("MASTER_ADDR", HERE.to_string()),
        ("MASTER_PORT", "1".to_string()),
        (PORT_VARIABLE, port.to_string()),
    ];
    let ranks = Ranks::of_variables(|name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.clone())
    });
    scope(|scope| {
        let other = scope.spawn(move || ranks.unwrap().share(&[], LONG));
        assert_eq!(host.share(2, b"an id", LONG), Ok(b"an id".to_vec()));
        assert_eq!(other.join().unwrap(), Ok(b"an id".to_vec()));
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_to_all() {
    let (host, port) = host();
    // Its connection waits where rank 0 finds it when it looks.
    let mut third = TcpStream::connect((HERE, port)).unwrap();
    third
        .write_all(b"nvfp4-gemv 1\x04\0\0\0\x02\0\0\0")
        .unwrap();
    let error = host.share(4, b"an id", Duration::ZERO).unwrap_err();
    assert_eq!(
        error.to_string(),
        "2 of 4 ranks did not come within 0 s: rank 1, 3"
    );
    let mut answer = Vec::new();
    std::io::Read::read_to_end(&mut third.try_clone().unwrap(), &mut answer).ok();
    drop(host);
    let text = String::from_utf8_lossy(&answer).into_owned();
    assert!(
        text.contains("rank 1, 3") && !text.contains("an id"),
        "{text}"
    );
}

#[test]
fn ranks_of_other_worlds_are_refused() {
    let refused = |rank: usize, ranks: usize| {
        let (host, port) = host();
        scope(|scope| {
            let other = scope.spawn(move || join(HERE, port, rank, ranks, LONG));
            let error = host.share(3, b"an id", LONG).unwrap_err();
            let Err(RanksError::Refused { says }) = other.join().unwrap() else {
                panic!("rank {rank} of {ranks} was not refused");
            };
            assert_eq!(says, error.to_string());
            says
        })
    };
    assert_eq!(
        refused(1, 4),
        "rank 1 was told that there are 4 ranks, and rank 0 that there are 3"
    );
    assert_eq!(
        refused(3, 3),
        "a process says that it is rank 3, which there is none of"
    );
    assert_eq!(
        refused(0, 3),
        "a process says that it is rank 0, which another one is"
    );
}

#[test]
fn two_ranks_of_one_number_are_refused() {
    let (host, port) = host();
    scope(|scope| {
        let others: Vec<_> = (0..2)
            .map(|_| scope.spawn(move || join(HERE, port, 1, 3, LONG)))
            .collect();
        let error = host.share(3, b"an id", LONG).unwrap_err();
        assert!(
            matches!(error, RanksError::Rank { rank: 1, .. }),
            "{error:?}"
        );
        for other in others {
            assert!(matches!(
                other.join().unwrap(),
                Err(RanksError::Refused { .. })
            ));
        }
    });
}

#[test]
fn a_rank_0_that_is_not_there_is_reported() {
    let (host, port) = host();
    drop(host);
    let error = join(HERE, port, 2, 3, Duration::ZERO).unwrap_err();
    let RanksError::Unreachable { rank: 2, at, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*at, format!("{HERE}:{port}"));
    assert!(error.to_string().contains("does not reach rank 0"));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let (_host, port) = host();
    let error = Host::open(HERE, port).unwrap_err();
    assert!(
        matches!(error, RanksError::Listen { port: taken, .. } if taken == port),
        "{error:?}"
    );
}

#[test]
fn something_else_at_the_port_is_not_taken_for_rank_0() {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    scope(|scope| {
        scope.spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            connection
                .write_all(b"SSH-2.0-OpenSSH_9.6 and more")
                .unwrap();
            // Held until the other side has read it.
            let _ = std::io::Read::read_to_end(&mut connection, &mut Vec::new());
        });
        let error = join(HERE, port, 1, 2, LONG).unwrap_err();
        assert!(matches!(error, RanksError::Stranger { .. }), "{error:?}");
    });
}
