//! Rank 0's side: it waits for all others, and answers them.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
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
    /// Listens at a port: for this machine alone where the host's name is one of its own addresses for itself, else for
    /// all.
    ///
    /// A rank of this machine that tries to reach the port before anybody listens may be given that very port for its
    /// own side (see `connect`). It has the port for a moment. So a port that is in use is tried for a while.
    pub(in crate::ranks) fn open(host: &str, port: u16) -> Result<Self, RanksError> {
        let addresses = places(host, resolved, own_name().as_deref());
        let addresses: Vec<SocketAddr> = addresses.iter().map(|&at| (at, port).into()).collect();
        let begin = Instant::now();
        let listener = loop {
            let listener = TcpListener::bind(&*addresses).and_then(|listener| {
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

/// The addresses at which rank 0 listens, at the first that can be had: loopback addresses where the host has no
/// others, however it is spelt. A name that cannot be resolved here may be one that others can.
fn places(
    host: &str,
    resolve: impl Fn(&str) -> Vec<IpAddr>,
    own_name: Option<&str>,
) -> Vec<IpAddr> {
    // Where the machine has IPv6, the first of these takes connections of both.
    let all = || vec![Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    // `::ffff:127.0.0.1` is 127.0.0.1.
    let canonical = |address: IpAddr| address.to_canonical();
    let plain = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
    let name = plain(host);
    let is_localhost = name == "localhost" || name.ends_with(".localhost");
    let mut addresses: Vec<IpAddr> = match host.parse::<IpAddr>() {
        Ok(address) => vec![canonical(address)],
        // Some systems give a machine's own name a loopback address, where other machines know it by another one.
        Err(_) if !is_localhost && own_name.is_some_and(|own| is_name_of(&name, &plain(own))) => {
            return all();
        }
        Err(_) => resolve(host).into_iter().map(canonical).collect(),
    };
    if is_localhost {
        // Whatever a resolver makes of it: RFC 6761.
        addresses.retain(IpAddr::is_loopback);
        if addresses.is_empty() {
            addresses.push(Ipv4Addr::LOCALHOST.into());
        }
    }
    if addresses.is_empty() || !addresses.iter().all(IpAddr::is_loopback) {
        return all();
    }
    // Ranks try all addresses of the host; of these some know only that of IPv4.
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses
}

/// Whether a name is that of a machine: with or without its domain, as far as both have one.
fn is_name_of(name: &str, machine: &str) -> bool {
    let first = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    name == machine
        || (first(name) == first(machine) && !(name.contains('.') && machine.contains('.')))
}

fn resolved(host: &str) -> Vec<IpAddr> {
    let addresses = (host, 0).to_socket_addrs();
    addresses
        .into_iter()
        .flatten()
        .map(|address| address.ip())
        .collect()
}

/// The name of this machine, where the system says it in a file.
fn own_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Rank 0's knowledge of the other ranks.
struct Others<'a> {
    ranks: usize,
    job: Option<&'a str>,
    came: BTreeMap<usize, TcpStream>,
    /// Connections of ranks that may not take part. Those ranks are told why, as all others are.
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

/// The state of a connection.
enum Said {
    Hello(Hello, TcpStream),
    /// The connection is a rank's of another version of this crate.
    OtherVersion(TcpStream),
    /// The connection is still to say the rest.
    NotYet(Silent),
    /// The connection is no rank's.
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
                    // The connection went away before it was taken.
                    ErrorKind::ConnectionAborted
                    | ErrorKind::ConnectionReset
                    | ErrorKind::Interrupted => {}
                    // An error such as too many open files, which may pass.
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Reads what connections have said meanwhile. All of them, since those behind one that may not take part are
    /// answered too.
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

    /// Reads the bytes that are there, without waiting for more.
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

/// Tells one that does not matter to these ranks why not. One of another version does not understand the reason: it
/// sees by the mark that this is none of its own.
fn turn_away(mut connection: TcpStream, says: &str) {
    // Bytes that are not read when a connection is closed would take the answer away from the other side.
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

    /// The address decides, not the spelling.
    #[test]
    fn rank_0_listens_for_this_machine_alone_where_its_address_is_loopback() {
        let known = |host: &str| -> Vec<IpAddr> {
            let addresses: &[&str] = match host {
                "127.1" | "LOCALHOST" => &["127.0.0.1"],
                "ip6-localhost" => &["::1"],
                "both" => &["::1", "127.0.0.1"],
                "alias" | "node1" => &["127.0.1.1"],
                "node1.cluster" => &["127.0.1.1", "10.0.0.1"],
                "host2" | "b.localhost" => &["10.0.0.2"],
                _ => &[],
            };
            addresses
                .iter()
                .map(|address| address.parse().unwrap())
                .collect()
        };
        let at = |host: &str, own: Option<&str>| -> Vec<String> {
            let places = places(host, known, own);
            places.iter().map(IpAddr::to_string).collect()
        };
        for (host, local) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.3.1", "127.0.3.1"),
            ("127.1", "127.0.0.1"),
            ("::1", "::1"),
            ("::ffff:127.0.0.1", "127.0.0.1"),
            ("LOCALHOST", "127.0.0.1"),
            // Names that nothing resolves are still what they are.
            ("localhost", "127.0.0.1"),
            ("localhost.", "127.0.0.1"),
            ("a.localhost", "127.0.0.1"),
            ("b.localhost", "127.0.0.1"),
            ("ip6-localhost", "::1"),
            ("alias", "127.0.1.1"),
        ] {
            for own in [None, Some("node1"), Some("localhost")] {
                assert_eq!(at(host, own), [local], "{host}");
            }
        }
        assert_eq!(at("both", None), ["127.0.0.1", "::1"]);
        for host in [
            "10.0.0.2",
            "::ffff:10.0.0.2",
            "host2",
            "nobody-knows",
            "node1.cluster",
        ] {
            assert_eq!(at(host, None), ["::", "0.0.0.0"], "{host}");
        }
        // Its own name is what others call it, by another address.
        for (host, own) in [
            ("node1", "node1"),
            ("Node1.", "node1"),
            ("node1", "node1.cluster"),
        ] {
            assert_eq!(at(host, Some(own)), ["::", "0.0.0.0"], "{host} {own}");
        }
        assert!(!is_name_of("node1.a", "node1.b") && !is_name_of("node1", "node10"));
    }

    /// As systems resolve names without asking anybody.
    #[test]
    fn no_spelling_of_this_machine_opens_a_port_to_others() {
        for host in [
            "127.0.0.1",
            "127.1",
            "localhost",
            "LOCALHOST",
            "::ffff:127.0.0.1",
        ] {
            let listener = Host::open(host, 0).unwrap().listener;
            let address = listener.local_addr().unwrap().ip();
            assert!(address.is_loopback(), "{host}: {address}");
        }
    }

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
