//! A model of how long GPUs of one host take to add up, or to collect, what each has.
//!
//! Only the sum between two H200 is measured. The model carries it over to more GPUs, and to other GPUs, as NCCL's ring
//! works. In n - 1 steps every part comes to the GPU that adds it up, and in n - 1 more the sum comes to all. A
//! collection is the second half alone. A step costs what NCCL's own model says, and the links give the part of their
//! published rate that NVLink gave.

use nvfp4_gemv::{Link, LinkKind};

/// Operations that GPUs do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Collective {
    /// All get the sum of what each has.
    AllReduce,
    /// All get what each has.
    AllGather,
}

/// Bytes and seconds of an all-reduce between two H200: NCCL 2.28.9, NVLS off, 50 in one CUDA graph. The least and the
/// most that was measured.
pub(super) const MEASURED: [(f64, f64); 2] = [(16_384.0, 12.5e-6), (1_048_576.0, 20.1e-6)];
/// The link between the two H200.
const MEASURED_LINK: Link = Link {
    kind: LinkKind::NvLink,
    bandwidth: 450_000_000_000,
};

/// The model of one link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduction {
    pub(super) link: Link,
    pub(super) ranks: usize,
}

/// Seconds, by what they are spent on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Parts {
    /// The launch, and what does not depend on the GPUs.
    pub(super) start: f64,
    pub(super) steps: usize,
    /// Time of each step.
    pub(super) step: f64,
    /// Time of the bytes that a GPU sends.
    pub(super) bytes: f64,
}

impl Parts {
    pub(super) fn seconds(&self) -> f64 {
        self.start + self.steps as f64 * self.step + self.bytes
    }
}

/// Seconds of a step of a ring, with NCCL's protocol for few bytes (LL). Source: NCCL, src/graph/tuning.cc, the table
/// `hwLat`.
pub(super) const fn step(kind: LinkKind) -> f64 {
    match kind {
        LinkKind::NvLink => 0.6e-6,
        LinkKind::Pcie => 1.0e-6,
    }
}

/// The measured rate as a share of the link's published rate.
pub(super) fn share_of_link() -> f64 {
    let [(few, fast), (many, slow)] = MEASURED;
    (many - few) / (slow - fast) / MEASURED_LINK.bandwidth as f64
}

/// Seconds of the launch: the shortest measured time without its two steps and its bytes.
fn start() -> f64 {
    let (bytes, seconds) = MEASURED[0];
    let rate = MEASURED_LINK.bandwidth as f64 * share_of_link();
    seconds - 2.0 * step(MEASURED_LINK.kind) - bytes / rate
}

impl Reduction {
    /// Times of a collective: `bytes` are the sum's, or those that all GPUs have together.
    pub(super) fn parts(&self, collective: Collective, bytes: usize) -> Parts {
        let others = self.ranks - 1;
        let rounds = match collective {
            Collective::AllReduce => 2,
            Collective::AllGather => 1,
        };
        // Each step sends a GPU's part of the whole.
        let sent = rounds as f64 * others as f64 * bytes as f64 / self.ranks as f64;
        Parts {
            start: if others == 0 { 0.0 } else { start() },
            steps: rounds * others,
            step: step(self.link.kind),
            bytes: sent / (self.link.bandwidth as f64 * share_of_link()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(link: Link, ranks: usize, collective: Collective, bytes: usize) -> f64 {
        Reduction { link, ranks }.parts(collective, bytes).seconds()
    }

    /// The model also gives a time between the two that it is made of: 12.8 us for 8192 f32.
    #[test]
    fn the_model_gives_what_was_measured() {
        for (bytes, measured) in [(16_384, 12.5e-6), (32_768, 12.8e-6), (1_048_576, 20.1e-6)] {
            let model = seconds(MEASURED_LINK, 2, Collective::AllReduce, bytes);
            let off = (model / measured - 1.0).abs();
            assert!(off < 0.02, "{bytes} bytes: {model} and {measured}");
        }
    }

    #[test]
    fn more_gpus_and_slower_links_take_longer() {
        let pcie = Link {
            kind: LinkKind::Pcie,
            bandwidth: 32_000_000_000,
        };
        let of = |link, ranks| seconds(link, ranks, Collective::AllReduce, 1 << 20);
        assert!(of(MEASURED_LINK, 2) < of(MEASURED_LINK, 4));
        assert!(of(MEASURED_LINK, 4) < of(MEASURED_LINK, 8));
        assert!(of(MEASURED_LINK, 2) < of(pcie, 2));
        // Twelve steps more, and 7/4 of the bytes.
        let (two, eight) = (of(MEASURED_LINK, 2), of(MEASURED_LINK, 8));
        let rate = 450e9 * share_of_link();
        let more = 12.0 * 0.6e-6 + 0.75 * f64::from(1 << 20) / rate;
        assert!((eight - two - more).abs() < 1e-9);
        // One GPU has nothing to add up; collecting is half of adding up.
        assert_eq!(of(MEASURED_LINK, 1), 0.0);
        let halves = [Collective::AllGather, Collective::AllReduce].map(|collective| {
            Reduction {
                link: pcie,
                ranks: 4,
            }
            .parts(collective, 4096)
        });
        assert_eq!(2 * halves[0].steps, halves[1].steps);
        assert!((2.0 * halves[0].bytes - halves[1].bytes).abs() < 1e-12);
    }
}
