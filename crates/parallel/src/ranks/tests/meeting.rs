//! How ranks meet, and what keeps them from it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::scope;
use std::time::{Duration, Instant};

use super::super::meeting::{Host, connect, join};
use super::super::{PORT_VARIABLE, Ranks, RanksError};
use super::{SLURM, of};

#[test]
fn where_ranks_meet_must_be_said() {
    let error = of(SLURM).unwrap().share(&[1], LONG).unwrap_err();
    let text = error.to_string();
    for part in ["MASTER_ADDR is not set", "Slurm", PORT_VARIABLE] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Alone, nobody is met.
    assert_eq!(Ranks::ALONE.share(&[1, 2], LONG), Ok(vec![1, 2]));
    let too_many = of(&[
        ("PMI_RANK", "0"),
        ("PMI_SIZE", "2147483647"),
        ("PMI_LOCAL_RANK", "0"),
        ("MASTER_ADDR", HERE),
        ("MASTER_PORT", "1"),
    ]);
    assert_eq!(
        too_many.unwrap().share(&[1], LONG).unwrap_err().to_string(),
        "2147483647 ranks are to meet, and 1048576 can"
    );
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

/// A rank's first message, as it goes over the network.
fn hello(rank: u8, ranks: u8) -> Vec<u8> {
    let numbers = [ranks, 0, 0, 0, rank, 0, 0, 0].into_iter();
    let job = [0; 8];
    b"nvfp4-gemv 2"
        .iter()
        .copied()
        .chain(numbers)
        .chain(job)
        .collect()
}

#[test]
fn all_ranks_get_what_rank_0_shares() {
    let (host, port) = host();
    // A connection of no rank does not matter: it says nothing, or something else.
    let mut stranger = TcpStream::connect((HERE, port)).unwrap();
    stranger.write_all(b"GET / HTTP/1.0\r\n\r\n  ").unwrap();
    scope(|scope| {
        let others: Vec<_> = (1..4)
            .map(|rank| scope.spawn(move || join((HERE, port), rank, 4, None, LONG)))
            .collect();
        assert_eq!(host.share(4, None, b"an id", LONG), Ok(b"an id".to_vec()));
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

/// Tried as often as a rank that waits for minutes would: among so many ports as systems give to connections, the one
/// that is tried is found.
#[test]
fn a_rank_that_waits_does_not_take_itself_for_rank_0() {
    let free = TcpListener::bind((HERE, 0)).unwrap();
    // Some systems give odd ports to those who listen, and even ones to those who connect, or the other way round.
    let port = free.local_addr().unwrap().port() ^ 1;
    for _ in 0..60_000 {
        if let Ok(connection) = connect(HERE, port, LONG) {
            assert_ne!(connection.local_addr().unwrap().port(), port);
        }
    }
}

/// The environment's variables lead there, too.
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
        assert_eq!(host.share(2, None, b"an id", LONG), Ok(b"an id".to_vec()));
        assert_eq!(other.join().unwrap(), Ok(b"an id".to_vec()));
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_to_all() {
    let (host, port) = host();
    // Its connection waits where rank 0 finds it when it looks.
    let mut third = TcpStream::connect((HERE, port)).unwrap();
    third.write_all(&hello(2, 4)).unwrap();
    let error = host.share(4, None, b"an id", Duration::ZERO).unwrap_err();
    assert_eq!(
        error.to_string(),
        "2 of 4 ranks did not come within 0 s: rank 1, 3"
    );
    let mut answer = Vec::new();
    third.read_to_end(&mut answer).unwrap();
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
            let other = scope.spawn(move || join((HERE, port), rank, ranks, None, LONG));
            let error = host.share(3, None, b"an id", LONG).unwrap_err();
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
            .map(|_| scope.spawn(move || join((HERE, port), 1, 3, None, LONG)))
            .collect();
        let error = host.share(3, None, b"an id", LONG).unwrap_err();
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
    let error = join((HERE, port), 2, 3, None, Duration::ZERO).unwrap_err();
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
        let error = join((HERE, port), 1, 2, None, LONG).unwrap_err();
        assert!(matches!(error, RanksError::Stranger { .. }), "{error:?}");
    });
}

/// As a listener does that closes while a rank is not taken yet: at its end, or of a process that has gone.
#[test]
fn a_rank_whose_connection_ends_without_an_answer_comes_again() {
    let first = TcpListener::bind((HERE, 0)).unwrap();
    let port = first.local_addr().unwrap().port();
    scope(|scope| {
        let other = scope.spawn(move || join((HERE, port), 1, 2, None, LONG));
        // Closed before it was read, which may reset it; and closed behind that.
        drop(first.accept().unwrap());
        let (mut heard, _) = first.accept().unwrap();
        heard.read_exact(&mut hello(1, 2)).unwrap();
        drop(heard);
        let host = Host::of(first);
        assert_eq!(host.share(2, None, b"an id", LONG), Ok(b"an id".to_vec()));
        assert_eq!(other.join().unwrap(), Ok(b"an id".to_vec()));
    });
}

/// Also to rank 0 of a meeting that waits for others. Both times before the others come: else it is one that has gone.
#[test]
fn a_rank_that_comes_again_takes_its_own_place() {
    let (host, port) = host();
    let come = || {
        let mut connection = TcpStream::connect((HERE, port)).unwrap();
        connection.write_all(&hello(1, 3)).unwrap();
        connection
    };
    drop(come());
    let mut again = come();
    scope(|scope| {
        let other = scope.spawn(move || join((HERE, port), 2, 3, None, LONG));
        assert_eq!(host.share(3, None, b"an id", LONG), Ok(b"an id".to_vec()));
        assert_eq!(other.join().unwrap(), Ok(b"an id".to_vec()));
    });
    let mut answer = Vec::new();
    again.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(b"an id"), "{answer:?}");
}

/// Half of it is no answer that may still come.
#[test]
fn an_answer_that_breaks_off_is_an_error_at_once() {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    scope(|scope| {
        scope.spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            connection.read_exact(&mut hello(1, 2)).unwrap();
            connection.write_all(b"nvfp4-gemv 2").unwrap();
        });
        let error = join((HERE, port), 1, 2, None, LONG).unwrap_err();
        assert!(matches!(error, RanksError::Unreachable { .. }), "{error:?}");
    });
}

/// Whose first words are longer or shorter than this one's. It reads its own answer's length, and sees a mark that is
/// not its own.
#[test]
fn a_rank_of_another_version_is_answered_and_not_waited_for() {
    let (host, port) = host();
    let mut others = [
        &b"nvfp4-gemv 1"[..],
        &[&b"nvfp4-gemv 3"[..], &[7; 100]].concat(),
    ]
    .map(|says| {
        let mut other = TcpStream::connect((HERE, port)).unwrap();
        other.write_all(says).unwrap();
        other
    });
    scope(|scope| {
        let ours = scope.spawn(move || host.share(2, None, b"an id", LONG));
        for other in &mut others {
            let mut answer = Vec::new();
            other.read_to_end(&mut answer).unwrap();
            assert!(answer.starts_with(b"nvfp4-gemv 2") && answer.len() >= 20);
        }
        let rank = join((HERE, port), 1, 2, None, LONG);
        assert_eq!(rank, Ok(b"an id".to_vec()));
        assert_eq!(ours.join().unwrap(), Ok(b"an id".to_vec()));
    });
}

#[test]
fn a_port_that_is_in_use_for_a_moment_is_waited_for() {
    let other = TcpListener::bind((HERE, 0)).unwrap();
    let port = other.local_addr().unwrap().port();
    scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(other);
        });
        assert_eq!(Host::open(HERE, port).unwrap().port(), port);
    });
}

/// The test has an address of its own, and a port that Linux gives nobody who asks for any. Between two meetings nobody
/// listens, and whoever got the port then would be taken for rank 0.
#[cfg(target_os = "linux")]
#[test]
fn ranks_share_again_at_once() {
    const OTHER: &str = "127.0.3.1";
    let first = 20_000 + (std::process::id() % 5_000) as u16;
    let port = (first..30_000).find(|&port| TcpListener::bind((OTHER, port)).is_ok());
    let port = port.expect("some port is free");
    let rank = |rank: usize| {
        for round in 0..100 {
            let shared = match rank {
                0 => Host::open(OTHER, port).and_then(|host| host.share(3, None, &[round], LONG)),
                _ => join((OTHER, port), rank, 3, None, LONG),
            };
            assert_eq!(shared, Ok(vec![round]), "rank {rank}");
        }
    };
    scope(|scope| {
        let ranks: Vec<_> = (0..3).map(|at| scope.spawn(move || rank(at))).collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

#[test]
fn a_rank_that_came_and_has_gone_is_named_to_all() {
    let (host, port) = host();
    for rank in [1, 3] {
        let mut gone = TcpStream::connect((HERE, port)).unwrap();
        gone.write_all(&hello(rank, 5)).unwrap();
    }
    scope(|scope| {
        let stay: Vec<_> = [2, 4]
            .into_iter()
            .map(|rank| scope.spawn(move || join((HERE, port), rank, 5, None, LONG)))
            .collect();
        let error = host.share(5, None, b"an id", LONG).unwrap_err();
        let says = error.to_string();
        assert_eq!(says, "2 of 5 ranks came and have gone: rank 1, 3");
        for rank in stay {
            let says = says.clone();
            assert_eq!(rank.join().unwrap(), Err(RanksError::Refused { says }));
        }
    });
}

/// Each would have had seconds for itself.
#[test]
fn connections_that_say_nothing_do_not_move_the_deadline() {
    let (host, port) = host();
    let begin = Instant::now();
    let mut silent: Vec<_> = (0..50)
        .map(|_| TcpStream::connect((HERE, port)).unwrap())
        .collect();
    silent[0].write_all(b"nvfp4").unwrap();
    let error = host.share(2, None, b"an id", Duration::ZERO).unwrap_err();
    assert!(matches!(error, RanksError::Absent { .. }), "{error:?}");
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_timeout_may_be_as_long_as_there_is() {
    let (host, port) = host();
    scope(|scope| {
        let other = scope.spawn(move || join((HERE, port), 1, 2, None, Duration::MAX));
        let shared = host.share(2, None, b"an id", Duration::MAX);
        assert_eq!(shared, Ok(b"an id".to_vec()));
        assert_eq!(other.join().unwrap(), Ok(b"an id".to_vec()));
    });
}

#[test]
fn ranks_of_another_job_are_turned_away() {
    let (host, port) = host();
    scope(|scope| {
        let ours = scope.spawn(move || host.share(3, Some("17.0"), b"an id", LONG));
        // The first one to come is no rank 1 of this job, and its own is still to come.
        let theirs = join((HERE, port), 1, 3, Some("18.0"), LONG).unwrap_err();
        let text = theirs.to_string();
        for part in ["another job, \"17.0\"", PORT_VARIABLE] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // A job that has no name may be the same.
        let others = [(1, Some("17.0")), (2, None)];
        let others =
            others.map(|(rank, job)| scope.spawn(move || join((HERE, port), rank, 3, job, LONG)));
        for other in others {
            assert_eq!(other.join().unwrap(), Ok(b"an id".to_vec()));
        }
        assert_eq!(ours.join().unwrap(), Ok(b"an id".to_vec()));
    });
}

#[test]
fn what_names_a_place_is_printed_without_harm() {
    let at = "\u{1b}[2J:1".to_string();
    let errors = [
        RanksError::Stranger { at: at.clone() },
        RanksError::Unreachable {
            rank: 1,
            at,
            timeout: LONG,
            why: "refused".into(),
        },
    ];
    for text in errors.map(|error| error.to_string()) {
        assert!(text.contains(r"\u{1b}[2J:1"), "{text:?}");
    }
    let v6 = join(("::1", 1), 1, 2, None, Duration::ZERO).unwrap_err();
    assert!(v6.to_string().contains("[::1]:1"), "{v6}");
}
