//! Rank 0's side: it waits for all others, and answers them.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Head, Hello, PAUSE, SILENCE, is_of_another_version, number_of_job};
use crate::ranks::{PORT_VARIABLE, RanksError};

/// Connections that have not said yet who they are, at most. Those behind them wait at the port.
const MOST_SILENT: usize = 64;

/// Rank 0, when it listens.
#[derive(Debug)]
pub(in crate::ranks) struct Host {
    listener: TcpListener,
}

impl Host {
    /// Listens at a port: for this machine alone where the host's name says so, else for all.
    ///
    /// A rank of this machine that tries to reach the port before anybody listens may be given that very port for its own
    /// side (see `connect`), and has it for a moment. So a port that is in use is tried for a while.
    pub(in crate::ranks) fn open(host: &str, port: u16) -> Result<Self, RanksError> {
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
        let begin = Instant::now();
        let listener = loop {
            let listener = TcpListener::bind(addresses).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(listener)
            });
            match listener {
                Err(error) if error.kind() == ErrorKind::AddrInUse && begin.elapsed() < SILENCE => {
                    sleep(PAUSE);
                }
                other => break other,
            }
        };
        let listener = listener.map_err(|error| RanksError::Listen {
            port,
            why: error.to_string(),
        })?;
        Ok(Self { listener })
    }

    /// Goes on with a listener that may have closed connections before.
    #[cfg(test)]
    pub(in crate::ranks) fn of(listener: TcpListener) -> Self {
        listener.set_nonblocking(true).unwrap();
        Self { listener }
    }

    #[cfg(test)]
    pub(in crate::ranks) fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    /// Waits for all ranks, and answers them: with the bytes, or with the error that this returns.
    pub(in crate::ranks) fn share(
        self,
        ranks: usize,
        job: Option<&str>,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, RanksError> {
        let mut others = Others::new(ranks, job);
        let come = others.gather(|| Ok(self.listener.accept()?.0), timeout);
        let come = come.and_then(|()| others.have_stayed());
        // A rank that has its answer may come at once to share again. It must find the next listener, and not this one.
        drop(self.listener);
        let answered = match &come {
            Ok(()) => others.answer(true, bytes),
            Err(error) => others.answer(false, error.to_string().as_bytes()),
        };
        come.and(answered)?;
        Ok(bytes.to_vec())
    }
}

/// What rank 0 knows of the others.
struct Others<'a> {
    ranks: usize,
    job: Option<&'a str>,
    came: BTreeMap<usize, TcpStream>,
    /// Those that may not take part are told why, as all others are.
    refused: Vec<TcpStream>,
    silent: Vec<Silent>,
}

/// A connection that has not said yet who it is.
struct Silent {
    connection: TcpStream,
    since: Instant,
    said: [u8; Hello::BYTES],
    length: usize,
}

/// What became of a connection.
enum Said {
    Hello(Hello, TcpStream),
    /// It is a rank's of another version of this crate.
    OtherVersion(TcpStream),
    /// It is still to say the rest.
    NotYet(Silent),
    /// It is no rank's.
    Nothing,
}

impl<'a> Others<'a> {
    fn new(ranks: usize, job: Option<&'a str>) -> Self {
        Self {
            ranks,
            job,
            came: BTreeMap::new(),
            refused: Vec::new(),
            silent: Vec::new(),
        }
    }

    fn gather(
        &mut self,
        mut accept: impl FnMut() -> std::io::Result<TcpStream>,
        timeout: Duration,
    ) -> Result<(), RanksError> {
        let begin = Instant::now();
        loop {
            // Also what came before the deadline and was not seen before it.
            let is_late = begin.elapsed() >= timeout;
            let accepted = self.accept(&mut accept);
            self.listen()?;
            if self.came.len() + 1 == self.ranks {
                return Ok(());
            }
            if is_late {
                return Err(self.late(timeout, accepted.err()));
            }
            sleep(PAUSE);
        }
    }

    /// Takes the connections that wait.
    fn accept(
        &mut self,
        accept: &mut impl FnMut() -> std::io::Result<TcpStream>,
    ) -> std::io::Result<()> {
        while self.silent.len() < MOST_SILENT {
            match accept() {
                Ok(connection) => {
                    if connection.set_nonblocking(true).is_ok() {
                        self.silent.push(Silent::new(connection));
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(()),
                    // It went away before it was taken.
                    ErrorKind::ConnectionAborted
                    | ErrorKind::ConnectionReset
                    | ErrorKind::Interrupted => {}
                    // Such as too many open files, which may pass.
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Reads what connections have said meanwhile. All of them, since those behind one that may not take part are answered
    /// too.
    fn listen(&mut self) -> Result<(), RanksError> {
        let mut all_may = Ok(());
        for silent in std::mem::take(&mut self.silent) {
            match silent.read() {
                Said::Hello(hello, connection) => {
                    all_may = all_may.and(self.take(hello, connection))
                }
                Said::OtherVersion(connection) => turn_away(
                    connection,
                    "this is rank 0 of another version of nvfp4-gemv",
                ),
                Said::NotYet(silent) => self.silent.push(silent),
                Said::Nothing => {}
            }
        }
        all_may
    }

    /// A rank has come, if it may.
    fn take(&mut self, hello: Hello, connection: TcpStream) -> Result<(), RanksError> {
        let ours = number_of_job(self.job);
        if ours != 0 && hello.job != 0 && hello.job != ours {
            // Another job's ranks do not matter to this one, whose own are still to come.
            let says = format!(
                "this is rank 0 of another job, {:?}; each job needs a port of its own, which {PORT_VARIABLE} names",
                self.job.unwrap_or_default()
            );
            turn_away(connection, &says);
            return Ok(());
        }
        let (rank, theirs) = (hello.rank as usize, hello.ranks as usize);
        let error = match self.ranks {
            ours if ours != theirs => RanksError::World { rank, theirs, ours },
            // One whose connection has gone may come again.
            _ if rank == 0 || self.came.get(&rank).is_some_and(waits) => RanksError::Rank {
                rank,
                why: "another one is",
            },
            ours if rank >= ours => RanksError::Rank {
                rank,
                why: "there is none of",
            },
            _ => {
                self.came.insert(rank, connection);
                return Ok(());
            }
        };
        self.refused.push(connection);
        Err(error)
    }

    /// Why ranks have not come in time.
    fn late(&self, timeout: Duration, accepting: Option<std::io::Error>) -> RanksError {
        let (ranks, came) = (self.ranks, self.came.len() + 1);
        if let Some(error) = accepting {
            let why = error.to_string();
            return RanksError::Accept { ranks, came, why };
        }
        RanksError::Absent {
            absent: (1..ranks)
                .filter(|rank| !self.came.contains_key(rank))
                .collect(),
            ranks,
            timeout,
        }
    }

    /// None of them has gone while the others were waited for.
    fn have_stayed(&self) -> Result<(), RanksError> {
        let gone = self
            .came
            .iter()
            .filter(|(_, connection)| !waits(connection));
        self.all_but(gone.map(|(rank, _)| *rank).collect())
    }

    /// Answers all, also where one of them has gone.
    fn answer(&mut self, is_well: bool, bytes: &[u8]) -> Result<(), RanksError> {
        let message = Head::answer(is_well, bytes);
        for refused in &mut self.refused {
            let _ = answer(refused, &message);
        }
        let mut gone = Vec::new();
        for (rank, connection) in &mut self.came {
            if answer(connection, &message).is_err() {
                gone.push(*rank);
            }
        }
        self.all_but(gone)
    }

    fn all_but(&self, gone: Vec<usize>) -> Result<(), RanksError> {
        let ranks = self.ranks;
        match gone.is_empty() {
            true => Ok(()),
            false => Err(RanksError::Gone { gone, ranks }),
        }
    }
}

impl Silent {
    fn new(connection: TcpStream) -> Self {
        Self {
            connection,
            since: Instant::now(),
            said: [0; Hello::BYTES],
            length: 0,
        }
    }

    /// What is there, without waiting for more.
    fn read(mut self) -> Said {
        loop {
            match self.connection.read(&mut self.said[self.length..]) {
                Ok(0) => return Said::Nothing,
                Ok(more) => self.length += more,
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock if self.since.elapsed() < SILENCE => {
                        return Said::NotYet(self);
                    }
                    _ => return Said::Nothing,
                },
            }
            // Its first words may be longer or shorter than these.
            if is_of_another_version(&self.said[..self.length]) {
                return Said::OtherVersion(self.connection);
            }
            if self.length == Hello::BYTES {
                return match Hello::of(&self.said) {
                    Some(hello) => Said::Hello(hello, self.connection),
                    None => Said::Nothing,
                };
            }
        }
    }
}

/// Whether a rank that came still waits for its answer: it says nothing more meanwhile.
fn waits(connection: &TcpStream) -> bool {
    let more = connection.peek(&mut [0]);
    more.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Tells one that does not matter to these ranks why not. One of another version does not understand the reason: it sees by
/// the mark that this is none of its own.
fn turn_away(mut connection: TcpStream, says: &str) {
    // What is not read when a connection is closed would take the answer away from the other side.
    let _ = connection.read(&mut [0; 4096]);
    let _ = answer(&mut connection, &Head::answer(false, says.as_bytes()));
}

/// Writes all of a message, which waits where the other side takes nothing.
fn answer(connection: &mut TcpStream, message: &[u8]) -> std::io::Result<()> {
    connection.set_nonblocking(false)?;
    connection.set_write_timeout(Some(SILENCE))?;
    connection.write_all(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_cannot_be_taken_are_no_ranks_that_did_not_come() {
        let mut others = Others::new(3, None);
        // Too many open files.
        let accept = || Err(std::io::Error::from_raw_os_error(24));
        let error = others.gather(accept, Duration::ZERO).unwrap_err();
        assert!(
            matches!(
                error,
                RanksError::Accept {
                    came: 1,
                    ranks: 3,
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(error.to_string().contains("ulimit -n"), "{error}");
    }
}
