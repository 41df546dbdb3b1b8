//! Clusters of every shape: ranks, places and the shared memory of the others.

use ptx_sim::{Launch, Module, Options, Policy, Sim, SimError, Timing};

/// Kernel whose CTAs each write four words: its rank, its place in the cluster, the cluster's place in the grid, and
/// the number of the CTA with the next rank. It reads the number from the shared memory of the CTA with the next rank.
const PTX: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n\
.visible .entry k(.param .u64 out) {\n\
 .reg .b32 %r<24>; .reg .b64 %q<4>; .shared .align 4 .b32 mine;\n\
 ld.param.u64 %q1, [out];\n\
 mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z;\n\
 mov.u32 %r4, %nctaid.x; mov.u32 %r5, %nctaid.y;\n\
 mad.lo.u32 %r6, %r3, %r5, %r2; mad.lo.u32 %r6, %r6, %r4, %r1;\n\
 mov.u32 %r7, mine; st.shared.u32 [%r7], %r6;\n\
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n\
 mov.u32 %r8, %cluster_ctarank; mov.u32 %r9, %cluster_nctarank;\n\
 add.u32 %r10, %r8, 1; rem.u32 %r10, %r10, %r9;\n\
 mapa.shared::cluster.u32 %r11, %r7, %r10; ld.shared::cluster.u32 %r12, [%r11];\n\
 mov.u32 %r13, %cluster_ctaid.x; mov.u32 %r14, %cluster_ctaid.y; mov.u32 %r15, %cluster_ctaid.z;\n\
 mad.lo.u32 %r13, %r14, 256, %r13; mad.lo.u32 %r13, %r15, 65536, %r13;\n\
 mov.u32 %r16, %clusterid.x; mov.u32 %r17, %clusterid.y; mov.u32 %r18, %clusterid.z;\n\
 mad.lo.u32 %r16, %r17, 256, %r16; mad.lo.u32 %r16, %r18, 65536, %r16;\n\
 mul.wide.u32 %q2, %r6, 16; add.s64 %q1, %q1, %q2;\n\
 st.global.v4.u32 [%q1], {%r8, %r13, %r16, %r12};\n\
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n\
 ret;\n}\n";

fn run(cluster: [u32; 3], clusters: [u32; 3], o: &Options) -> Result<Vec<u32>, SimError> {
    let mut sim = Sim::new(Module::parse(PTX)?);
    let grid: [u32; 3] = std::array::from_fn(|i| cluster[i] * clusters[i]);
    let out = sim.alloc("out", 16 * grid.iter().product::<u32>() as usize)?;
    let launch = Launch {
        cluster: Some(cluster),
        ..Launch::new("k", grid, [1, 1, 1]).buffer(out)
    };
    sim.run(&launch, o)?;
    Ok(sim.words(out))
}

/// Words that each CTA must have written.
fn expected(cluster: [u32; 3], clusters: [u32; 3]) -> Vec<u32> {
    let grid: [u32; 3] = std::array::from_fn(|i| cluster[i] * clusters[i]);
    let number = |at: [u32; 3]| (at[2] * grid[1] + at[1]) * grid[0] + at[0];
    let packed = |at: [u32; 3]| at[0] | at[1] << 8 | at[2] << 16;
    let size = cluster.iter().product::<u32>();
    let mut all = Vec::new();
    for z in 0..grid[2] {
        for y in 0..grid[1] {
            for x in 0..grid[0] {
                let at = [x, y, z];
                let inner: [u32; 3] = std::array::from_fn(|i| at[i] % cluster[i]);
                let outer: [u32; 3] = std::array::from_fn(|i| at[i] / cluster[i]);
                let rank = (inner[2] * cluster[1] + inner[1]) * cluster[0] + inner[0];
                let next = (rank + 1) % size;
                let place = [
                    next % cluster[0],
                    next / cluster[0] % cluster[1],
                    next / cluster[0] / cluster[1],
                ];
                let peer: [u32; 3] = std::array::from_fn(|i| outer[i] * cluster[i] + place[i]);
                all.extend([rank, packed(inner), packed(outer), number(peer)]);
            }
        }
    }
    all
}

#[test]
fn every_shape_has_its_ranks_and_places() {
    let shapes = [
        [1, 1, 1],
        [2, 1, 1],
        [1, 2, 1],
        [1, 1, 3],
        [2, 2, 1],
        [2, 1, 2],
        [3, 2, 1],
        [2, 2, 2],
        [1, 4, 2],
        [4, 4, 1],
        [1, 1, 16],
    ];
    for cluster in shapes {
        for clusters in [[1, 1, 1], [2, 3, 2]] {
            for policy in [Policy::Fair, Policy::Random(5)] {
                let o = Options {
                    policy,
                    timing: Timing::Random,
                    ..Options::default()
                };
                let out = run(cluster, clusters, &o).unwrap_or_else(|e| panic!("{cluster:?}: {e}"));
                assert_eq!(
                    out,
                    expected(cluster, clusters),
                    "{cluster:?} of {clusters:?}"
                );
            }
        }
    }
}
