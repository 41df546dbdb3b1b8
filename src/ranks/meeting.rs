//! How ranks meet: each tells rank 0 who it is; when all have come, rank 0 answers all.
//!
//! A rank says: a mark, how many ranks it was told that there are, its number. Rank 0 answers: a mark, whether all is well,
//! a length, and so many bytes: what it shares, or why not. Numbers are of 32 bits, the least byte first.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Ranks, RanksError};

/// What both sides begin with. The digit changes with what follows.
const MARK: [u8; 12] = *b"nvfp4-gemv 1";
const HELLO: usize = MARK.len() + 8;

/// How long one connection may keep rank 0 from the others: what does not speak by then is no rank.
const SILENCE: Duration = Duration::from_secs(2);
/// Between two looks for a connection, or two tries to make one.
const PAUSE: Duration = Duration::from_millis(10);

/// Rank 0's side.
#[derive(Debug)]
pub(super) struct Host {
    listener: TcpListener,
}

impl Host {
    /// Listens at a port: for this machine alone where the host's name says so, else for all.
    pub(super) fn open(host: &str, port: u16) -> Result<Self, RanksError> {
        let addresses: &[SocketAddr] = match host.parse::<IpAddr>() {
            // The one that is named: there are more than 127.0.0.1 and ::1.
            Ok(address) if address.is_loopback() => &[(address, port).into()],
            _ if host == "localhost" => &[(Ipv4Addr::LOCALHOST, port).into()],
            // Where IPv6 is there, this takes connections of both.
            _ => &[
                (Ipv6Addr::UNSPECIFIED, port).into(),
                (Ipv4Addr::UNSPECIFIED, port).into(),
            ],
        };
        let listener = TcpListener::bind(addresses).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener.map_err(|error| RanksError::Listen {
            port,
            why: error.to_string(),
        })?;
        Ok(Self { listener })
    }

    #[cfg(test)]
    pub(super) fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    /// Waits for all ranks, and answers them: with the bytes, or with the error that this returns.
    pub(super) fn share(
        &self,
        ranks: usize,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, RanksError> {
        let mut came: Vec<Option<TcpStream>> = (1..ranks).map(|_| None).collect();
        let result = self.gather(ranks, &mut came, timeout);
        let (is_well, answer) = match &result {
            Ok(()) => (1, bytes.to_vec()),
            Err(error) => (0, error.to_string().into_bytes()),
        };
        let length = answer.len().min(Ranks::MOST_BYTES);
        let mut message = MARK.to_vec();
        message.extend(u32::to_le_bytes(is_well));
        message.extend((length as u32).to_le_bytes());
        message.extend(&answer[..length]);
        for (at, connection) in came.iter_mut().enumerate() {
            let Some(connection) = connection else {
                continue;
            };
            // A rank that has gone meanwhile is missed by what ranks do next, which has a timeout too.
            if connection.write_all(&message).is_err() && result.is_ok() {
                return Err(RanksError::Absent {
                    absent: vec![at + 1],
                    ranks,
                    timeout,
                });
            }
        }
        result.map(|()| bytes.to_vec())
    }

    fn gather(
        &self,
        ranks: usize,
        came: &mut [Option<TcpStream>],
        timeout: Duration,
    ) -> Result<(), RanksError> {
        let begin = Instant::now();
        while came.iter().any(Option::is_none) {
            match self.listener.accept() {
                Ok((connection, _)) => {
                    if let Some((theirs, rank, connection)) = hello(connection) {
                        let place = place(came, ranks, theirs, rank);
                        match place {
                            Ok(place) => *place = Some(connection),
                            Err(error) => {
                                // It is told, as all others are.
                                came.iter_mut()
                                    .find(|place| place.is_none())
                                    .map(|place| place.insert(connection));
                                return Err(error);
                            }
                        }
                    }
                }
                Err(_) if begin.elapsed() < timeout => sleep(PAUSE),
                Err(_) => {
                    let missing = |(at, place): (usize, &Option<_>)| match place {
                        None => Some(at + 1),
                        Some(_) => None,
                    };
                    return Err(RanksError::Absent {
                        absent: came.iter().enumerate().filter_map(missing).collect(),
                        ranks,
                        timeout,
                    });
                }
            }
        }
        Ok(())
    }
}

/// What a rank says; nothing of a connection that is no rank's.
fn hello(mut connection: TcpStream) -> Option<(usize, usize, TcpStream)> {
    // On some systems a connection takes this over from what listened.
    connection.set_nonblocking(false).ok()?;
    connection.set_read_timeout(Some(SILENCE)).ok()?;
    connection.set_write_timeout(Some(SILENCE)).ok()?;
    let mut hello = [0; HELLO];
    connection.read_exact(&mut hello).ok()?;
    let (mark, numbers) = hello.split_at(MARK.len());
    let number = |at: usize| number(&numbers[at..]);
    (mark == MARK).then(|| (number(0), number(4), connection))
}

fn number(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")) as usize
}

/// Where the connection of a rank is kept, if it may have come.
fn place(
    came: &mut [Option<TcpStream>],
    ours: usize,
    theirs: usize,
    rank: usize,
) -> Result<&mut Option<TcpStream>, RanksError> {
    if theirs != ours {
        return Err(RanksError::World { rank, theirs, ours });
    }
    let wrong = |why| Err(RanksError::Rank { rank, why });
    match rank.checked_sub(1).and_then(|at| came.get_mut(at)) {
        None if rank == 0 => wrong("another one is"),
        None => wrong("there is none of"),
        Some(place) if place.is_some() => wrong("another one is"),
        Some(place) => Ok(place),
    }
}

/// Another rank's side: what rank 0 shares.
pub(super) fn join(
    host: &str,
    port: u16,
    rank: usize,
    ranks: usize,
    timeout: Duration,
) -> Result<Vec<u8>, RanksError> {
    let at = format!("{host}:{port}");
    let begin = Instant::now();
    let unreachable = |why: String| RanksError::Unreachable {
        rank,
        at: at.clone(),
        timeout,
        why,
    };
    let mut connection = loop {
        match connect(host, port) {
            Ok(connection) => break connection,
            Err(_) if begin.elapsed() < timeout => sleep(PAUSE),
            Err(error) => return Err(unreachable(error.to_string())),
        }
    };
    let mut message = MARK.to_vec();
    message.extend((ranks as u32).to_le_bytes());
    message.extend((rank as u32).to_le_bytes());
    // Rank 0 may have come later than this one, and its timeout, at which it answers, begun later too.
    let patience = timeout.saturating_mul(2) + SILENCE;
    let answer = connection
        .set_read_timeout(Some(patience))
        .and_then(|()| connection.write_all(&message))
        .and_then(|()| answer(&mut connection));
    match answer {
        Ok(Some((true, bytes))) => Ok(bytes),
        Ok(Some((false, says))) => Err(RanksError::Refused {
            says: String::from_utf8_lossy(&says).into_owned(),
        }),
        Ok(None) => Err(RanksError::Stranger { at }),
        Err(error) => Err(unreachable(format!("it does not answer ({error})"))),
    }
}

/// The first of the host's addresses that takes the connection.
///
/// On its own machine a rank that tries for long may reach itself: where nobody listens yet, the system may give it the very
/// port that it wants to reach, and TCP connects it with that. Then rank 0 has not come.
pub(super) fn connect(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut last = None;
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, SILENCE) {
            Ok(connection) if connection.local_addr()? == address => {
                last = Some(std::io::ErrorKind::ConnectionRefused.into());
            }
            Ok(connection) => return Ok(connection),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::Error::other("the host has no address")))
}

/// Whether all is well, and what comes with that; nothing where it is not rank 0 that answers.
fn answer(connection: &mut TcpStream) -> std::io::Result<Option<(bool, Vec<u8>)>> {
    let mut head = [0; HELLO];
    connection.read_exact(&mut head)?;
    let (mark, numbers) = head.split_at(MARK.len());
    let (is_well, length) = (number(numbers), number(&numbers[4..]));
    if mark != MARK || is_well > 1 || length > Ranks::MOST_BYTES {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    connection.read_exact(&mut bytes)?;
    Ok(Some((is_well == 1, bytes)))
}
