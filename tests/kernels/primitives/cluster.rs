//! Clusters: places, peers' shared memory and the barriers around it. Dependent launch.

use super::trial::{ALL, HOPPER, Kernels, bytes32};

crate::trials! {
    simulator: places, peers_in_order, dependent_launch_alone;
}

/// CTAs of a grid of two by two clusters.
fn grid(size: u32) -> [u32; 3] {
    [2 * size, 2, 1]
}

fn places() {
    for kernels in HOPPER.map(|arch| Kernels::new("cluster", arch)) {
        for size in [1, 2, 3, 4, 8] {
            let mut trial = kernels.trial("places", grid(size), [1, 1, 1]);
            trial.launch.cluster = Some([size, 1, 1]);
            let ctas = (0..2).flat_map(|_| 0..2 * size);
            let want = bytes32(ctas.flat_map(|x| [x / size, x % size, size]));
            trial = trial.output(want.len());
            trial.gives(&want);
        }
    }
}

fn peers_in_order() {
    for kernels in HOPPER.map(|arch| Kernels::new("cluster", arch)) {
        for size in [1, 2, 3, 8] {
            let ctas = 4 * size as usize;
            // Sums depend on the order.
            let mut rng = fastrand::Rng::with_seed(5);
            let numbers: Vec<f32> = (0..32 * ctas).map(|_| rng.f32() * 1e3 - 4e2).collect();
            let mut want = Vec::new();
            for cta in 0..ctas {
                let first = cta / size as usize * size as usize;
                let ranks = || first..first + size as usize;
                want.extend(ranks().flat_map(|r| &numbers[32 * r..32 * (r + 1)]));
                let sum = |t| ranks().fold(0.0, |sum: f32, r: usize| sum + numbers[32 * r + t]);
                want.extend((0..32).map(sum).collect::<Vec<f32>>().iter());
            }
            let bits = |v: &[f32]| bytes32(v.iter().map(|x| x.to_bits()));
            let want = bits(&want);
            let mut trial = kernels.trial("exchange", grid(size), [32, 1, 1]);
            trial.launch.cluster = Some([size, 1, 1]);
            trial = trial.output(want.len()).input(&bits(&numbers)).words(&[0]);
            trial.gives(&want);
            trial.wrong(5).is_refused(&["in a cluster of"]);
            if size == 1 {
                continue;
            }
            trial
                .wrong(1)
                .is_refused(&["nothing wrote", "nothing tells"]);
            // "Nothing keeps the CTA of this memory", or it "has ended" already.
            trial.wrong(2).is_refused(&[" of CTA "]);
            trial
                .wrong(3)
                .is_refused(&["nothing wrote", "nothing tells"]);
            trial.wrong(4).differs(&want);
            trial.wrong(6).is_refused(&["barrier.cluster"]);
        }
    }
}

fn dependent_launch_alone() {
    for arch in ALL {
        let kernels = Kernels::new("cluster", arch);
        let want = bytes32(0..64);
        let mut trial = kernels.trial("dependent", [1, 1, 1], [64, 1, 1]);
        trial = trial.output(want.len()).words(&[0]);
        trial.gives(&want);
        trial.wrong(1).differs(&want);
        for instruction in ["griddepcontrol.wait;", "griddepcontrol.launch_dependents;"] {
            assert_eq!(kernels.ptx.contains(instruction), arch != "80");
        }
    }
}
