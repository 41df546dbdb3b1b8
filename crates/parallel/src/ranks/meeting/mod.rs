//! How ranks meet: each tells rank 0 who it is; when all have come, rank 0 answers all.
//!
//! A rank says: a mark, how many ranks it was told that there are, its number, and its job. Rank 0 answers: a mark,
//! whether all is well, a length, and so many bytes: what it shares, or why not. Numbers are of 32 bits, the least byte
//! first; a job is a number of 64 bits that is made of its name, or 0 where it has none.
//!
//! A rank whose connection ends without an answer comes again, until its timeout: whoever had it may have been at its
//! end.

mod host;
mod join;

use std::time::Duration;

use super::Ranks;

pub(super) use host::Host;
#[cfg(test)]
pub(super) use join::connect;
pub(super) use join::join;

/// The mark that both sides begin with. The digit changes with what follows.
const MARK: [u8; 12] = *b"nvfp4-gemv 2";

/// Whether what is said begins with the mark of another version of this crate: with all of it but the digit.
fn is_of_another_version(said: &[u8]) -> bool {
    let (mark, digit) = MARK.split_at(MARK.len() - 1);
    let rest = said.strip_prefix(mark);
    rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with(digit))
}

/// How long one connection may say nothing: what does not speak by then is no rank.
const SILENCE: Duration = Duration::from_secs(2);
/// The pause between two looks for a connection, or two tries to make one.
const PAUSE: Duration = Duration::from_millis(10);

/// A rank's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hello {
    ranks: u32,
    rank: u32,
    job: u64,
}

impl Hello {
    const BYTES: usize = MARK.len() + 16;

    fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (mark, numbers) = bytes.split_at_mut(MARK.len());
        mark.copy_from_slice(&MARK);
        numbers[..4].copy_from_slice(&self.ranks.to_le_bytes());
        numbers[4..8].copy_from_slice(&self.rank.to_le_bytes());
        numbers[8..].copy_from_slice(&self.job.to_le_bytes());
        bytes
    }

    /// Nothing of what is no rank's.
    fn of(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (mark, numbers) = bytes.split_at(MARK.len());
        (mark == MARK).then(|| Self {
            ranks: number(numbers),
            rank: number(&numbers[4..]),
            job: u64::from_le_bytes(numbers[8..].try_into().expect("eight bytes")),
        })
    }
}

/// The head before the bytes of an answer: whether all is well, and how many bytes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    is_well: bool,
    length: usize,
}

impl Head {
    const BYTES: usize = MARK.len() + 8;

    /// The message of an answer, with at most [`Ranks::MOST_BYTES`] of its bytes.
    fn answer(is_well: bool, bytes: &[u8]) -> Vec<u8> {
        let bytes = &bytes[..bytes.len().min(Ranks::MOST_BYTES)];
        let mut message = MARK.to_vec();
        message.extend(u32::from(is_well).to_le_bytes());
        message.extend((bytes.len() as u32).to_le_bytes());
        message.extend(bytes);
        message
    }

    /// Nothing of what is not rank 0's.
    fn of(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (mark, numbers) = bytes.split_at(MARK.len());
        let (is_well, length) = (number(numbers), number(&numbers[4..]) as usize);
        let is_rank_0s = mark == MARK && is_well <= 1 && length <= Ranks::MOST_BYTES;
        is_rank_0s.then_some(Self {
            is_well: is_well == 1,
            length,
        })
    }
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"))
}

/// A job's name as a number: FNV-1a, which is the same in all builds of this crate.
fn number_of_job(name: Option<&str>) -> u64 {
    let Some(name) = name else {
        return 0;
    };
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1)
}

/// A host and a port, as addresses are written.
fn address(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let hello = Hello {
            ranks: 300,
            rank: 7,
            job: u64::MAX - 1,
        };
        assert_eq!(Hello::of(&hello.bytes()), Some(hello));
        let mut other = hello.bytes();
        other[0] ^= 1;
        assert_eq!(Hello::of(&other), None);

        let answer = Head::answer(false, &[1; Ranks::MOST_BYTES + 1]);
        let head = Head::of(answer[..Head::BYTES].try_into().unwrap()).unwrap();
        assert_eq!((head.is_well, head.length), (false, Ranks::MOST_BYTES));
        assert_eq!(answer.len(), Head::BYTES + head.length);
    }

    #[test]
    fn other_versions_are_told_from_what_is_no_rank() {
        assert!(is_of_another_version(b"nvfp4-gemv 1"));
        assert!(is_of_another_version(b"nvfp4-gemv 3 and more"));
        for none in [&MARK[..], b"nvfp4-gemv ", b"GET / HTTP/1.0", b""] {
            assert!(!is_of_another_version(none), "{none:?}");
        }
    }

    #[test]
    fn jobs_differ_by_name() {
        assert_eq!(number_of_job(None), 0);
        assert_ne!(number_of_job(Some("")), 0);
        assert_ne!(number_of_job(Some("17")), number_of_job(Some("18")));
    }

    #[test]
    fn addresses_are_written_as_they_are_read() {
        assert_eq!(address("host1", 80), "host1:80");
        assert_eq!(address("::1", 80), "[::1]:80");
    }
}
