//! Needs of kernels with `tcgen05` instructions: the instruction descriptor, room in shared and tensor memory, and
//! block scales in memory. The kernels themselves are `csrc/matmul_tcgen05.cu` and `csrc/measure_tcgen05.cu`.

use ptx_sim::models::idesc::{Accumulator, Element, Idesc, Kind, ScaleType};

use crate::matmul::{Map, Problem, Tiles, TilesError, out_of_range};
use crate::types::Type;
use crate::variants::{Family, LANES, Scale, Variant};

/// Columns of a multiprocessor's tensor memory.
pub const ALL_COLUMNS: u32 = 512;
/// Bytes of an atom of scales: of 128 rows four scales each.
const ATOM_BYTES: u32 = 512;
/// Columns of tensor memory that an atom takes.
const ATOM_COLUMNS: u32 = 4;
/// Bytes of K of a step, and instructions that it is.
const STEP_BYTES: u32 = 128;
const SLICES: u32 = 4;
/// Bytes of the rows as which atoms are copied.
const ATOM_ROW_BYTES: u32 = 128;
const ROWS_OF_ATOM: u32 = ATOM_BYTES / ATOM_ROW_BYTES;

/// The header `tensor_memory.cuh`: how the kernels know tensor memory and scales.
pub fn header() -> String {
    let mut text = String::from("#pragma once\n\n#include \"types.cuh\"\n\n");
    for (name, value) in [
        ("LANES", LANES),
        ("ALL_COLUMNS", ALL_COLUMNS),
        ("ATOM_BYTES", ATOM_BYTES),
        ("ATOM_COLUMNS", ATOM_COLUMNS),
    ] {
        text += &format!("constexpr u32 {name} = {value};\n");
    }
    text
}

/// The instruction descriptor: types and shape of a variant, whose own name says its kind alone. `None` of other
/// families.
///
/// Bits that say with which scale of an atom an instruction begins are zero.
pub fn instruction(variant: &Variant) -> Option<u32> {
    if variant.family() != Family::Tcgen05 {
        return None;
    }
    let kind = match variant.kind() {
        "f16" => Kind::F16,
        "tf32" => Kind::Tf32,
        "f8f6f4" => Kind::F8f6f4,
        "i8" => Kind::I8,
        "mxf8f6f4" => Kind::Mxf8f6f4,
        "mxf4" => Kind::Mxf4,
        "mxf4nvf4" => Kind::Mxf4nvf4,
        _ => return None,
    };
    let element = |ty| {
        Some(match ty {
            Type::F16 => Element::F16,
            Type::Bf16 => Element::Bf16,
            Type::Tf32 => Element::Tf32,
            Type::E4m3 => Element::E4m3,
            Type::E5m2 => Element::E5m2,
            Type::E2m3 => Element::E2m3,
            Type::E3m2 => Element::E3m2,
            Type::E2m1 => Element::E2m1,
            Type::U8 => Element::U8,
            Type::S8 => Element::S8,
            _ => return None,
        })
    };
    let sums = match variant.accumulator {
        Type::F16 => Accumulator::F16,
        Type::S32 => Accumulator::S32,
        _ => Accumulator::F32,
    };
    let shape = variant.shape;
    let (a, b) = (element(variant.a)?, element(variant.b)?);
    let scale = match variant.scale() {
        Some(Scale { ty: "ue4m3", .. }) => ScaleType::Ue4m3,
        _ => ScaleType::Ue8m0,
    };
    let dense = Idesc::dense(kind, a, b, sums, shape.m, shape.n);
    Some(Idesc { scale, ..dense }.encode())
}

/// How the product's kernel divides shared and tensor memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes of a stage: what arrives in a step, up to the next start of a swizzle pattern.
    pub stage_bytes: u32,
    /// Tiles whose sums tensor memory has at a time.
    pub sums: u32,
    /// Columns of tensor memory that sums and scales take.
    pub used_columns: u32,
    /// Columns that the CTA allocates.
    pub columns: u32,
    /// Bytes of dynamic shared memory: stages, barriers and the address of the columns.
    pub shared: u32,
}

impl Room {
    /// For tiles whose sizes [`Tiles::check`] has looked at.
    pub fn new(variant: &Variant, tiles: &Tiles) -> Self {
        let atoms = variant.scale().map_or(0, |scale| scale.vector);
        // Groups of 128 rows whose scales a stage has.
        let groups = tiles.block_m.div_ceil(LANES) + tiles.block_n.div_ceil(LANES);
        // A pair of CTAs has half of B each.
        let of_b = tiles.block_n / tiles.warp_m.div_ceil(LANES).max(1);
        let elements = (tiles.block_m + of_b) * tiles.block_k;
        let stage_bytes = (elements + groups * atoms * ATOM_BYTES).next_multiple_of(1024);
        let of_tile = tiles.block_m / LANES * tiles.block_n;
        let scales = tiles.stages * groups * atoms * ATOM_COLUMNS;
        let sums = if 2 * of_tile + scales <= ALL_COLUMNS {
            2
        } else {
            1
        };
        let used_columns = sums * of_tile + scales;
        Self {
            stage_bytes,
            sums,
            used_columns,
            columns: used_columns.next_power_of_two().max(32),
            shared: tiles.stages * stage_bytes + 16 * (tiles.stages + sums) + 16,
        }
    }
}

/// Accumulators of the kernels that measure: as many as tensor memory holds beside scales.
pub fn accumulators(variant: &Variant) -> u32 {
    let scales = match variant.scale() {
        Some(_) => (1 + variant.shape.n.div_ceil(LANES)) * ATOM_COLUMNS,
        None => 0,
    };
    // A power of two, so that each gets the same share of a turn's instructions.
    let fit = (ALL_COLUMNS - scales) / variant.shape.n;
    1 << fit.clamp(1, 8).ilog2()
}

/// Bytes of shared memory of the kernels that measure: rows of 128 bytes, an atom, a barrier and an address.
pub fn measure_shared(variant: &Variant) -> u32 {
    ((LANES + variant.shape.n) * 128 + ATOM_BYTES + 16).next_multiple_of(1024)
}

/// The place of a matrix's block scales in memory. Each 128 rows of each step of K have atoms of 512 bytes. An atom has
/// the scales of four consecutive blocks of each of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scales {
    rows: u32,
    steps: u32,
    atoms: u32,
    /// Elements of a block, which have one scale.
    pub block: u32,
    scale: Scale,
}

impl Scales {
    /// The scales of A and of B, where the kernel of a variant reads them from memory. For `mma.sync` all scales are
    /// one.
    pub fn of(variant: &Variant, problem: Problem) -> Option<[Self; 2]> {
        let scale = variant
            .scale()
            .filter(|_| variant.family() == Family::Tcgen05)?;
        let row_bytes = u64::from(problem.k) * u64::from(variant.container_bits(variant.a)) / 8;
        let of_rows = |rows| Self {
            rows,
            steps: row_bytes.div_ceil(STEP_BYTES.into()) as u32,
            atoms: scale.vector * SLICES / 4,
            block: variant.shape.k / scale.vector,
            scale,
        };
        Some([of_rows(problem.m), of_rows(problem.n)])
    }

    /// Rows of the matrix.
    pub fn rows(&self) -> usize {
        self.rows as usize
    }

    /// Rows of 128 bytes that they are in memory.
    fn atom_rows(&self) -> u64 {
        let atoms = u64::from(self.steps) * u64::from(self.atoms);
        u64::from(self.rows.div_ceil(LANES)) * atoms * u64::from(ROWS_OF_ATOM)
    }

    /// How the kernel copies them: atoms as four rows each of 128 bytes, those of a step at once.
    ///
    /// # Errors
    /// More rows than a map counts.
    pub fn map(&self) -> Result<Map, TilesError> {
        let rows = self.atom_rows();
        let rows = u32::try_from(rows).map_err(|_| {
            let allowed = format!("1 to {}", u32::MAX);
            out_of_range("number of rows of scales", rows, allowed)
        })?;
        Ok(Map {
            rows,
            row_bytes: ATOM_ROW_BYTES.into(),
            box_rows: self.atoms * ROWS_OF_ATOM,
            box_bytes: ATOM_ROW_BYTES,
            swizzled: false,
        })
    }

    /// How many bytes they take.
    pub fn bytes(&self) -> usize {
        let bytes = self.atom_rows() * u64::from(ATOM_ROW_BYTES);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// The byte that is the scale of a row's block.
    pub fn place(&self, row: usize, block: usize) -> usize {
        let lanes = LANES as usize;
        let atoms_of_rows = self.steps as usize * self.atoms as usize;
        let atom = row / lanes * atoms_of_rows + block / 4;
        atom * ATOM_BYTES as usize + row % 32 * 16 + row % lanes / 32 * 4 + block % 4
    }

    /// The code of an integer; `None` where the type does not have it.
    pub fn encode(&self, value: i64) -> Option<u8> {
        match self.scale.ty {
            // UE8M0 is a power of two, which the exponent encodes.
            "ue8m0" => (value > 0 && value.count_ones() == 1)
                .then(|| self.scale.one() + value.ilog2() as u8),
            _ => (value >= 0)
                .then(|| Type::E4m3.encode(value))
                .flatten()
                .map(|code| code as u8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matmul::Plan;
    use crate::variants;

    fn variant(name: &str) -> Variant {
        variants::find(name).unwrap()
    }

    /// Values that public kernels use, and the fields' places in PTX ISA 9.7.16.4.
    #[test]
    fn descriptors_have_the_isas_bits() {
        let of = |name: &str, n| instruction(&variant(name).with_n(n)).unwrap();
        let nvfp4 = "tcgen05.m128n256k64.mxf4nvf4.f32.e2m1.e2m1.ue4m3";
        assert_eq!(of(nvfp4, 16), 0x0804_0480);
        assert_eq!(of(nvfp4, 64), 0x0810_0480);
        let of_pair = instruction(&variant(nvfp4).with_n(64).with_m(256));
        assert_eq!(of_pair, Some(0x1010_0480));
        let ue8m0 = "tcgen05.m128n256k64.mxf4nvf4.f32.e2m1.e2m1.ue8m0";
        assert_eq!(of(ue8m0, 64), 0x0810_0480 | 1 << 23);
        let shape = (256 / 8) << 17 | (128 / 16) << 24;
        let bf16 = "tcgen05.m128n256k16.f16.f32.bf16.bf16";
        assert_eq!(of(bf16, 256), 1 << 4 | 1 << 7 | 1 << 10 | shape);
        assert_eq!(of("tcgen05.m128n256k16.f16.f16.f16.f16", 256), shape);
        let tf32 = "tcgen05.m128n256k8.tf32.f32.tf32.tf32";
        assert_eq!(of(tf32, 256), 1 << 4 | 2 << 7 | 2 << 10 | shape);
        let mixed = "tcgen05.m128n256k32.f8f6f4.f32.e5m2.e2m1";
        assert_eq!(of(mixed, 256), 1 << 4 | 1 << 7 | 5 << 10 | shape);
        let bytes = "tcgen05.m128n256k32.i8.s32.u8.s8";
        assert_eq!(of(bytes, 256), 2 << 4 | 1 << 10 | shape);
        assert_eq!(instruction(&variant("mma.m16n8k16.f32.f16.f16")), None);
        for variant in variants::all() {
            let is_tensor = variant.family() == Family::Tcgen05;
            assert_eq!(
                instruction(&variant).is_some(),
                is_tensor,
                "{}",
                variant.name()
            );
        }
    }

    /// PTX ISA 9.7.16.10.7: four scales of a row are a word; rows 32 apart are words side by side.
    #[test]
    fn scales_lie_in_atoms() {
        let nvfp4 = variant("tcgen05.m128n256k64.mxf4nvf4.f32.e2m1.e2m1.ue4m3");
        let problem = Problem {
            m: 129,
            n: 1,
            k: 320,
        };
        let [a, b] = Scales::of(&nvfp4, problem).unwrap();
        // Two steps of 256 elements, and so of four atoms.
        assert_eq!((a.bytes(), b.bytes(), a.block), (2 * 8 * 512, 8 * 512, 16));
        assert_eq!(a.place(0, 0), 0);
        assert_eq!(a.place(1, 3), 16 + 3);
        assert_eq!(a.place(33, 5), 512 + 16 + 4 + 1);
        assert_eq!(a.place(128, 16), 8 * 512 + 4 * 512);
        let mxf8 = variant("tcgen05.m128n256k32.mxf8f6f4.f32.e4m3.e4m3.ue8m0");
        let [a, _] = Scales::of(&mxf8, problem).unwrap();
        assert_eq!((a.bytes(), a.block), (2 * 3 * 512, 32));
        assert_eq!(
            (a.encode(1), a.encode(4), a.encode(3)),
            (Some(127), Some(129), None)
        );
        assert_eq!(
            (b.encode(1), b.encode(3), b.encode(0)),
            (Some(0x38), Some(0x44), Some(0))
        );
        let map = a.map().unwrap();
        assert_eq!((map.rows, map.box_rows, map.row_bytes), (2 * 3 * 4, 4, 128));
        let warp = variant("mma.m16n8k64.mxf4nvf4.f32.e2m1.e2m1.ue4m3");
        assert_eq!(Scales::of(&warp, problem), None);
    }

    /// 2^22 rows of 2^15 groups of 128, of 2^14 steps of four atoms of four rows each.
    #[test]
    fn more_scales_than_a_map_counts_are_refused() {
        let nvfp4 = variant("tcgen05.m128n256k64.mxf4nvf4.f32.e2m1.e2m1.ue4m3");
        let (m, n, k) = (1 << 22, 1, 1 << 22);
        let problem = Problem { m, n, k };
        let [a, b] = Scales::of(&nvfp4, problem).unwrap();
        assert!(a.map().is_err() && b.map().is_ok());
        assert_eq!(a.bytes(), 128 << 33);
        let plan = Plan::new(&nvfp4, &Tiles::usual(&nvfp4), problem, 148);
        let says = plan.unwrap_err().to_string();
        assert!(
            says.starts_with("number of rows of scales of 8589934592 is not"),
            "{says}"
        );
    }

    #[test]
    fn sums_of_two_tiles_where_there_is_room() {
        let room = |name: &str, tiles: &str| Room::new(&variant(name), &tiles.parse().unwrap());
        let f16 = room(
            "tcgen05.m128n256k16.f16.f32.f16.f16",
            "128x256x128/128x256/4/8",
        );
        assert_eq!((f16.sums, f16.used_columns, f16.columns), (2, 512, 512));
        assert_eq!((f16.stage_bytes, f16.shared), (48 << 10, (192 << 10) + 112));
        let nvfp4 = "tcgen05.m128n256k64.mxf4nvf4.f32.e2m1.e2m1.ue4m3";
        let large = room(nvfp4, "128x256x128/128x256/4/8");
        assert_eq!((large.sums, large.used_columns), (1, 256 + 4 * 48));
        assert_eq!(large.stage_bytes, (48 << 10) + 3 * 2048);
        // Half of B, and all of its scales.
        let pair = room(nvfp4, "128x256x128/256x256/4/8/2");
        assert_eq!(pair.stage_bytes, (32 << 10) + 3 * 2048);
        assert_eq!(pair.used_columns, large.used_columns);
        let small = room(nvfp4, "128x64x128/128x64/2/1");
        assert_eq!(
            (small.sums, small.used_columns, small.columns),
            (2, 192, 256)
        );
        let all = variants::all();
        let accumulators: Vec<u32> = all
            .iter()
            .filter(|variant| variant.family() == Family::Tcgen05)
            .map(accumulators)
            .collect();
        assert!(accumulators.iter().all(|count| [1, 2].contains(count)));
    }
}
