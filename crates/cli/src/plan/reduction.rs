//! A model of how long GPUs of one host take to add up, or to collect, what each has.
//!
//! It has the form of NCCL's ring. In n - 1 steps every part comes to the GPU that adds it up, and in n - 1 more the sum
//! comes to all. A collection is the second half alone. Three numbers are fitted to sums that were measured between two
//! GPUs and among eight, over NVLink (`layers::sums` of nvfp4-gemv-parallel): the test below says how well. Other links
//! were not measured. They give the same part of their published rate, and a step takes as much longer as NCCL's own
//! table says.

use nvfp4_gemv::{Link, LinkKind};

/// Operations that GPUs do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Collective {
    /// All get the sum of what each has.
    AllReduce,
    /// All get what each has.
    AllGather,
}

/// Seconds of the launch, and of what does not depend on the number of GPUs.
pub(super) const START: f64 = 5.7e-6;

/// Seconds of a step of a ring over NVLink.
pub(super) const NVLINK_STEP: f64 = 0.85e-6;

/// The rate as a share of the link's published rate.
pub(super) const SHARE_OF_LINK: f64 = 0.31;

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

/// Seconds of a step of a ring. Over PCIe as much longer as with NCCL's protocol for few bytes (LL). Source: NCCL,
/// src/graph/tuning.cc, the table `hwLat`.
pub(super) const fn step(kind: LinkKind) -> f64 {
    match kind {
        LinkKind::NvLink => NVLINK_STEP,
        LinkKind::Pcie => NVLINK_STEP * 1.0 / 0.6,
    }
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
            start: if others == 0 { 0.0 } else { START },
            steps: rounds * others,
            step: step(self.link.kind),
            bytes: sent / (self.link.bandwidth as f64 * SHARE_OF_LINK),
        }
    }
}

#[cfg(test)]
mod tests {
    use nvfp4_gemv_parallel::layers::sums;

    use super::*;

    fn seconds(link: Link, ranks: usize, collective: Collective, bytes: usize) -> f64 {
        Reduction { link, ranks }.parts(collective, bytes).seconds()
    }

    /// NVLink of an H100 and an H200.
    const MEASURED_LINK: Link = Link {
        kind: LinkKind::NvLink,
        bandwidth: 450_000_000_000,
    };

    /// Two GPUs take longer for 2 MiB than twice the time of 1 MiB, which no such model gives.
    #[test]
    fn the_model_gives_what_was_measured() {
        let two = sums::MEASURED.map(|of| (2, of.bytes, of.plain));
        let eight = sums::EIGHT.map(|(bytes, plain)| (8, bytes, plain));
        for (ranks, bytes, measured) in two.into_iter().chain(eight) {
            let model = 1e6 * seconds(MEASURED_LINK, ranks, Collective::AllReduce, bytes);
            let off = (model / measured - 1.0).abs();
            let most = match (ranks, bytes) {
                (2, 2_097_152) => 0.27,
                _ => 0.16,
            };
            assert!(
                off < most,
                "{ranks} ranks, {bytes} bytes: {model} and {measured}"
            );
        }
        // Four H200: 11.3 to 11.9 us for 16 to 32 KiB.
        for (bytes, measured) in [(16 << 10, 11.3), (32 << 10, 11.9)] {
            let model = 1e6 * seconds(MEASURED_LINK, 4, Collective::AllReduce, bytes);
            assert!((model / measured - 1.0).abs() < 0.16, "{bytes}: {model}");
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
        let rate = 450e9 * SHARE_OF_LINK;
        let more = 12.0 * NVLINK_STEP + 0.75 * f64::from(1 << 20) / rate;
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
