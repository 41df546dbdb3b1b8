//! The units of `csrc`: which kernels are compiled together, from which source, and for which GPU
//! architectures they exist.

/// One or several kernels that are compiled by one call of nvcc.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    pub name: &'static str,
    /// A file of `csrc/kernels`, without `.cuh`.
    pub source: &'static str,
    /// A macro to define, if several units share the source: it says what the source compiles.
    pub part: Option<&'static str>,
    needs: Needs,
}

/// Requirements of a unit's kernels on an architecture.
#[derive(Clone, Copy, Debug)]
enum Needs {
    /// sm_80 or newer, as every kernel does.
    Nothing,
    /// This architecture or a newer one: 90.
    Newer(u32),
    /// Architectures of this major version, and code for one architecture or family alone (`100a`, `100f`).
    MajorSpecific(u32),
}

/// The unit of the kernels that are no GEMV.
pub const HELPERS: &str = "helpers";

pub const UNITS: &[Unit] = &[
    whole("gemv_direct", Needs::Nothing),
    whole("gemv_stream", Needs::Nothing),
    part(
        "gemv_stream_select",
        "gemv_stream",
        "NVFP4_UNIT_SELECT",
        Needs::Nothing,
    ),
    part(
        "gemv_stream_ragged",
        "gemv_stream",
        "NVFP4_UNIT_RAGGED",
        Needs::Nothing,
    ),
    // The block-scaled matrix instruction of a warp, of compute capability 12.x.
    whole("gemv_mma_fp4", Needs::MajorSpecific(12)),
    whole("gemv_mma", Needs::Nothing),
    part(
        "gemv_mma_ragged",
        "gemv_mma",
        "NVFP4_UNIT_RAGGED",
        Needs::Nothing,
    ),
    // Warpgroup matrix instructions are Hopper's alone.
    whole("gemv_wgmma", Needs::MajorSpecific(9)),
    whole("gemv_packed", Needs::MajorSpecific(9)),
    // Sums in the order of gemv_packed.
    part(
        "gemv_stream_ordered",
        "gemv_stream",
        "NVFP4_UNIT_ORDERED",
        Needs::MajorSpecific(9),
    ),
    // Bulk copies and mbarriers came with Hopper.
    whole("gemv_ring", Needs::Newer(90)),
    part(
        "gemv_ring_select",
        "gemv_ring",
        "NVFP4_UNIT_SELECT",
        Needs::Newer(90),
    ),
    part(
        "gemv_ring_on_read",
        "gemv_ring",
        "NVFP4_UNIT_ON_READ",
        Needs::Newer(90),
    ),
    // The tensor cores of compute capability 10.x.
    whole("gemv_tcgen05", Needs::MajorSpecific(10)),
    // combine, quantize, relayout, read_only.
    whole(HELPERS, Needs::Nothing),
    whole("read_bulk", Needs::Newer(90)),
];

const fn whole(name: &'static str, needs: Needs) -> Unit {
    Unit {
        name,
        source: name,
        part: None,
        needs,
    }
}

const fn part(
    name: &'static str,
    source: &'static str,
    define: &'static str,
    needs: Needs,
) -> Unit {
    Unit {
        name,
        source,
        part: Some(define),
        needs,
    }
}

/// The unit of a name.
pub fn find(name: &str) -> Option<&'static Unit> {
    UNITS.iter().find(|unit| unit.name == name)
}

impl Unit {
    /// Whether the unit's kernels exist for an architecture, named as nvcc does without `sm_`: `80`, `90a`.
    pub fn exists_for(&self, arch: &str) -> bool {
        let digits = arch.trim_end_matches(['a', 'f']);
        let specific = digits.len() < arch.len();
        let Ok(number) = digits.parse::<u32>() else {
            return false;
        };
        match self.needs {
            Needs::Nothing => true,
            Needs::Newer(least) => number >= least,
            Needs::MajorSpecific(major) => number / 10 == major && specific,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(arch: &str) -> Vec<&'static str> {
        let exist = UNITS.iter().filter(|unit| unit.exists_for(arch));
        exist.map(|unit| unit.name).collect()
    }

    #[test]
    fn kernels_exist_where_their_instructions_do() {
        let everywhere = [
            "gemv_direct",
            "gemv_stream",
            "gemv_stream_select",
            "gemv_stream_ragged",
            "gemv_mma",
            "gemv_mma_ragged",
            "helpers",
        ];
        assert_eq!(units("80"), everywhere);
        assert_eq!(units("89"), everywhere);
        for (arch, more) in [
            (
                "90a",
                &["gemv_wgmma", "gemv_packed", "gemv_stream_ordered"][..],
            ),
            ("100", &[]),
            ("100f", &["gemv_tcgen05"]),
            ("103a", &["gemv_tcgen05"]),
            ("120f", &["gemv_mma_fp4"]),
            ("121a", &["gemv_mma_fp4"]),
            ("120", &[]),
        ] {
            let mut expected = [
                &everywhere,
                more,
                &[
                    "gemv_ring",
                    "gemv_ring_select",
                    "gemv_ring_on_read",
                    "read_bulk",
                ],
            ]
            .concat();
            expected.sort_unstable();
            let mut found = units(arch);
            found.sort_unstable();
            assert_eq!(found, expected, "{arch}");
        }
    }
}
