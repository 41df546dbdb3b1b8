//! Another rank's side: it says who it is, and waits for rank 0's answer.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Head, Hello, PAUSE, SILENCE, address, number_of_job};
use crate::ranks::RanksError;

/// What rank 0 shares.
pub(in crate::ranks) fn join(
    (host, port): (&str, u16),
    rank: usize,
    ranks: usize,
    job: Option<&str>,
    timeout: Duration,
) -> Result<Vec<u8>, RanksError> {
    let at = address(host, port);
    let begin = Instant::now();
    let unreachable = |why: String| RanksError::Unreachable {
        rank,
        at: at.clone(),
        timeout,
        why,
    };
    let mut connection = loop {
        match connect(host, port, timeout.saturating_sub(begin.elapsed())) {
            Ok(connection) => break connection,
            Err(_) if begin.elapsed() < timeout => sleep(PAUSE),
            Err(error) => return Err(unreachable(error.to_string())),
        }
    };
    let hello = Hello {
        ranks: ranks as u32,
        rank: rank as u32,
        job: number_of_job(job),
    };
    // Rank 0 may have come later than this one, and its timeout, at which it answers, begun later too.
    let patience = timeout.saturating_mul(2).saturating_add(SILENCE);
    let answer = connection
        .write_all(&hello.bytes())
        .and_then(|()| answer(&mut connection, patience));
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
pub(in crate::ranks) fn connect(
    host: &str,
    port: u16,
    within: Duration,
) -> std::io::Result<TcpStream> {
    let mut last = None;
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, within.clamp(PAUSE, SILENCE)) {
            Ok(connection) if connection.local_addr()? == address => {
                last = Some(ErrorKind::ConnectionRefused.into());
            }
            Ok(connection) => return Ok(connection),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::Error::other("the host has no address")))
}

/// Whether all is well, and what comes with that; nothing where it is not rank 0 that answers.
fn answer(
    connection: &mut TcpStream,
    within: Duration,
) -> std::io::Result<Option<(bool, Vec<u8>)>> {
    let begin = Instant::now();
    let mut head = [0; Head::BYTES];
    read_all(connection, &mut head, begin, within)?;
    let Some(head) = Head::of(&head) else {
        return Ok(None);
    };
    let mut bytes = vec![0; head.length];
    read_all(connection, &mut bytes, begin, within)?;
    Ok(Some((head.is_well, bytes)))
}

/// Fills all of it. The system's timeout is one of each read, and would begin again with every byte.
fn read_all(
    connection: &mut TcpStream,
    mut bytes: &mut [u8],
    begin: Instant,
    within: Duration,
) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let left = within.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        connection.set_read_timeout(Some(left))?;
        match connection.read(bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => bytes = &mut bytes[read..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
