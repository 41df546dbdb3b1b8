//! Another rank's side: it says who it is, and waits for rank 0's answer.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Head, Hello, PAUSE, SILENCE, address, number_of_job};
use crate::ranks::RanksError;

/// Tells rank 0 who this is, and returns the bytes that rank 0 shares.
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
    let hello = Hello {
        ranks: ranks as u32,
        rank: rank as u32,
        job: number_of_job(job),
    };
    let tried = || -> Result<_, Failed> {
        let left = timeout.saturating_sub(begin.elapsed());
        ask(connect(host, port, left)?, &hello, patience(timeout))
    };
    loop {
        match tried() {
            Ok(Some((true, bytes))) => return Ok(bytes),
            Ok(Some((false, says))) => {
                let says = String::from_utf8_lossy(&says).into_owned();
                return Err(RanksError::Refused { says });
            }
            Ok(None) => return Err(RanksError::Stranger { at }),
            Err(Failed { may_pass: true, .. }) if begin.elapsed() < timeout => sleep(PAUSE),
            Err(Failed { why, .. }) => return Err(unreachable(why)),
        }
    }
}

/// How long rank 0's answer is waited for. Rank 0 may have come later than this one, by up to the timeout. Then its
/// own, at which it answers, has begun later too; and it still listens to who has not spoken.
fn patience(timeout: Duration) -> Duration {
    timeout.saturating_mul(2).saturating_add(SILENCE)
}

/// Why rank 0 has not answered.
struct Failed {
    why: String,
    /// Rank 0 may answer when it is asked again.
    may_pass: bool,
}

impl Failed {
    fn no_answer(error: &std::io::Error, may_pass: bool) -> Self {
        Self {
            why: format!("it does not answer ({error})"),
            may_pass,
        }
    }
}

impl From<std::io::Error> for Failed {
    /// There is no connection yet.
    fn from(error: std::io::Error) -> Self {
        Self {
            why: error.to_string(),
            may_pass: true,
        }
    }
}

/// The first of the host's addresses that takes the connection.
///
/// On its own machine a rank that tries for long may reach itself. Where nobody listens yet, the system may give the
/// rank the very port that it wants to reach, and TCP connects it with that. Then rank 0 has not come.
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

/// Says who this is, and waits for the answer: whether all is well, and what comes with that; nothing where it is not
/// rank 0 that answers.
///
/// A listener at its end closes connections that it has not taken. Such a listener is of ranks that met before, or of a
/// process that has gone. So a connection that ends before the answer begins may be tried again.
fn ask(
    mut connection: TcpStream,
    hello: &Hello,
    within: Duration,
) -> Result<Option<(bool, Vec<u8>)>, Failed> {
    let begin = Instant::now();
    let mut head = [0; Head::BYTES];
    let (first, _) = head.split_at_mut(1);
    let begun = connection
        .write_all(&hello.bytes())
        .and_then(|()| read_all(&mut connection, first, begin, within));
    begun.map_err(|error| Failed::no_answer(&error, has_ended(&error)))?;
    let rest = rest_of(&mut connection, head, begin, within);
    rest.map_err(|error| Failed::no_answer(&error, false))
}

/// Whether an error is the end of a connection.
fn has_ended(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
    )
}

/// An answer of which the first byte is there.
fn rest_of(
    connection: &mut TcpStream,
    mut head: [u8; Head::BYTES],
    begin: Instant,
    within: Duration,
) -> std::io::Result<Option<(bool, Vec<u8>)>> {
    read_all(connection, &mut head[1..], begin, within)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a rank would say that rank 0 does not answer, where rank 0 has still to say which ranks are missing.
    #[test]
    fn a_rank_waits_longer_than_rank_0_can_take() {
        for seconds in [0, 1, 60, 3600] {
            let timeout = Duration::from_secs(seconds);
            let rank_0_comes_last = timeout;
            let it_answers = rank_0_comes_last + timeout + SILENCE;
            assert!(patience(timeout) >= it_answers, "{timeout:?}");
        }
        assert_eq!(patience(Duration::MAX), Duration::MAX);
    }
}
