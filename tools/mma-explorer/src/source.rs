//! The CUDA sources: the kernels of `csrc`, which are embedded, and headers that say which instruction and which tiles.

use std::fmt::Write;

use crate::arch::Arch;
use crate::blackwell::{self, Room};
use crate::matmul::Tiles;
use crate::nvrtc::Source;
use crate::variants::{Emission, Family, Variant};

const EMBEDDED: [(&str, &str); 7] = [
    ("types.cuh", include_str!("../csrc/types.cuh")),
    ("clock.cuh", include_str!("../csrc/clock.cuh")),
    ("memory.cuh", include_str!("../csrc/memory.cuh")),
    ("output.cuh", include_str!("../csrc/output.cuh")),
    ("hopper.cuh", include_str!("../csrc/hopper.cuh")),
    ("blackwell.cuh", include_str!("../csrc/blackwell.cuh")),
    ("warp_tile.cuh", include_str!("../csrc/warp_tile.cuh")),
];

/// Options of NVRTC beside the architecture.
pub fn options() -> Vec<String> {
    vec!["--std=c++17".into(), "--generate-line-info".into()]
}

/// A kernel of one instruction for each of several, of any family: [`kernel_of_one`]. They are compiled and read, not
/// run.
pub fn survey(variants: &[Variant]) -> Source {
    let mut text = String::from("#include \"types.cuh\"\n");
    for (i, variant) in variants.iter().enumerate() {
        let name = kernel_of_one(i);
        let file = match variant.family() {
            Family::Mma => "one.cuh",
            Family::Wgmma => "one_wgmma.cuh",
            Family::Tcgen05 => "one_tcgen05.cuh",
        };
        let _ = write!(
            text,
            "\n// {}\nnamespace variant_{i} {{\n{}\n#define NAME {name}\n#include \"{file}\"\n#undef NAME\n}}\n",
            variant.name(),
            instruction(variant),
        );
    }
    let kernels = [
        ("one.cuh", include_str!("../csrc/one.cuh").to_string()),
        (
            "one_wgmma.cuh",
            include_str!("../csrc/one_wgmma.cuh").to_string(),
        ),
        (
            "one_tcgen05.cuh",
            include_str!("../csrc/one_tcgen05.cuh").to_string(),
        ),
    ];
    source("survey.cu", &text, kernels)
}

/// The name of a variant's kernel in a [`survey`], by its place there.
pub fn kernel_of_one(place: usize) -> String {
    format!("one_{place}")
}

/// The kernels `latency` and `throughput` of an instruction, for an architecture: where the instruction is emulated
/// there they have a change of A between instructions.
pub fn measure(variant: &Variant, arch: Arch) -> Source {
    let emulated = variant
        .machine(arch)
        .is_some_and(|machine| machine.emission == Emission::Emulated);
    let mut text = format!(
        "{}\nconstexpr bool EMULATED = {emulated};\n",
        instruction(variant)
    );
    if variant.family() == Family::Tcgen05 {
        let count = blackwell::accumulators(variant);
        let _ = writeln!(text, "constexpr u32 ACCUMULATORS = {count};");
    }
    let (name, kernels) = match variant.family() {
        Family::Mma => ("measure.cu", include_str!("../csrc/measure.cu")),
        Family::Wgmma => ("measure_wgmma.cu", include_str!("../csrc/measure_wgmma.cu")),
        Family::Tcgen05 => (
            "measure_tcgen05.cu",
            include_str!("../csrc/measure_tcgen05.cu"),
        ),
    };
    source(name, kernels, [("instruction.cuh", header(&text))])
}

/// The kernel `matmul`. If instructions of the family take several N, the N of the tiles is used.
pub fn matmul(variant: &Variant, tiles: &Tiles) -> Source {
    let (name, kernel, variant) = match variant.family() {
        Family::Wgmma => (
            "matmul_wgmma.cu",
            include_str!("../csrc/matmul_wgmma.cu"),
            variant.with_n(tiles.warp_n),
        ),
        Family::Tcgen05 => (
            "matmul_tcgen05.cu",
            include_str!("../csrc/matmul_tcgen05.cu"),
            variant.with_n(tiles.warp_n).with_m(tiles.warp_m),
        ),
        Family::Mma if tiles.bulk => (
            "matmul_bulk.cu",
            include_str!("../csrc/matmul_bulk.cu"),
            *variant,
        ),
        Family::Mma => ("matmul.cu", include_str!("../csrc/matmul.cu"), *variant),
    };
    let mut of_tiles = tiles_header(tiles);
    if variant.family() == Family::Tcgen05 {
        let room = Room::new(&variant, tiles);
        for (name, value) in [
            ("STAGE_BYTES", room.stage_bytes),
            ("SUMS", room.sums),
            ("COLUMNS", room.columns),
        ] {
            let _ = writeln!(of_tiles, "constexpr u32 {name} = {value};");
        }
    }
    source(
        name,
        kernel,
        [
            ("instruction.cuh", header(&instruction(&variant))),
            ("tiles.cuh", of_tiles),
        ],
    )
}

fn source<const N: usize>(name: &str, text: &str, made: [(&str, String); N]) -> Source {
    let embedded = EMBEDDED.map(|(name, text)| (name.to_string(), text.to_string()));
    let embedded = embedded.into_iter();
    let embedded = embedded.chain([("tensor_memory.cuh".to_string(), blackwell::header())]);
    let made = made.map(|(name, text)| (name.to_string(), text));
    Source {
        name: name.into(),
        text: text.into(),
        headers: embedded.chain(made).collect(),
    }
}

/// A header of its own.
fn header(text: &str) -> String {
    format!("#pragma once\n\n#include \"types.cuh\"\n\n{text}")
}

/// Sizes of a variant, and `multiply`, which is the instruction. The text is equal for variants that differ only in
/// their instruction descriptor, so that their kernels are compiled once.
fn instruction(variant: &Variant) -> String {
    let mut text = match variant.family() {
        Family::Tcgen05 => String::new(),
        _ => format!("// {}\n", variant.name()),
    };
    let constants = [
        ("INSTRUCTION_M", variant.shape.m),
        ("INSTRUCTION_N", variant.shape.n),
        ("INSTRUCTION_K_BYTES", variant.k_bytes()),
        ("C_REGISTERS", variant.accumulator_registers()),
        ("ACCUMULATOR_BITS", variant.accumulator.bits()),
    ];
    for (name, value) in constants {
        let _ = writeln!(text, "constexpr u32 {name} = {value};");
    }
    match variant.family() {
        Family::Mma => text += &multiply(variant),
        Family::Wgmma => text += &multiply_wgmma(variant),
        Family::Tcgen05 => text += &multiply_tcgen05(variant),
    }
    text
}

/// `multiply` of a `tcgen05` variant, A and B in shared memory.
fn multiply_tcgen05(variant: &Variant) -> String {
    let (count, scales, inputs) = match variant.scale() {
        Some(scale) => (
            scale.vector,
            ", [%5], [%6]",
            ", \"r\"(scales_a), \"r\"(scales_b)",
        ),
        None => (0, "", ""),
    };
    format!(
        "// Scales of a row in one instruction.\nconstexpr u32 SCALES = {count};\n\n\
         // d = a * b + d, or a * b where `more` is zero; d and scales: addresses of tensor memory; a and b: descriptors of\n\
         // matrices in shared memory; what: the instruction descriptor.\n\
         __device__ __forceinline__ void multiply(u32 d, u64 a, u64 b, u32 what, u32 scales_a, u32 scales_b, u32 more) {{\n    \
         asm volatile(\"{{.reg .pred p; setp.ne.b32 p, %4, 0; {} [%0], %1, %2, %3{scales}, p;}}\"\n        \
         ::\"r\"(d), \"l\"(a), \"l\"(b), \"r\"(what), \"r\"(more){inputs}\n        : \"memory\");\n}}\n",
        variant.instruction(),
    )
}

/// `multiply` of a `wgmma` variant, A and B in shared memory.
fn multiply_wgmma(variant: &Variant) -> String {
    let c = variant.accumulator_registers();
    let list: Vec<_> = (0..c).map(|i| format!("%{i}")).collect();
    let outputs: Vec<_> = (0..c).map(|i| format!("\"+r\"(d[{i}])")).collect();
    // Floats can be negated, and 16-bit ones transposed.
    let modes = match (variant.a.is_integer(), variant.a.bits()) {
        (true, _) => "",
        (false, 16) => ", 1, 1, 0, 0",
        (false, _) => ", 1, 1",
    };
    format!(
        "\n// d = a * b + d, or a * b where `more` is zero; a and b: descriptors of matrices in shared memory.\n\
         __device__ __forceinline__ void multiply(u32 (&d)[{c}], u64 a, u64 b, u32 more) {{\n    \
         asm volatile(\"{{.reg .pred p; setp.ne.b32 p, %{more}, 0; {} {{{}}}, %{c}, %{b}, p{modes};}}\"\n        \
         : {}\n        : \"l\"(a), \"l\"(b), \"r\"(more));\n}}\n",
        variant.instruction(),
        list.join(", "),
        outputs.join(", "),
        b = c + 1,
        more = c + 2,
    )
}

/// `multiply` of a `mma.sync` variant.
fn multiply(variant: &Variant) -> String {
    let [a, b, c] = variant.registers();
    let mut text = format!("constexpr u32 A_REGISTERS = {a};\nconstexpr u32 B_REGISTERS = {b};\n");
    let list = |first: u32, count: u32| {
        let names: Vec<_> = (first..first + count).map(|i| format!("%{i}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let operands = |constraint: &str, name: &str, count: u32| {
        let all: Vec<_> = (0..count)
            .map(|i| format!("\"{constraint}\"({name}[{i}])"))
            .collect();
        all.join(", ")
    };
    let mut inputs = format!("{}, {}", operands("r", "a", a), operands("r", "b", b));
    let mut scales = String::new();
    if let Some(scale) = variant.scale() {
        // All scales are one: this program measures and checks the instruction, not scaling.
        let one = u32::from_le_bytes([scale.one(); 4]);
        let register = a + b + c;
        scales = format!(", %{register}, {{0, 0}}, %{register}, {{0, 0}}");
        let _ = write!(inputs, ", \"r\"({one:#x}u)");
    }
    let _ = write!(
        text,
        "\n// d = a * b + d\n__device__ __forceinline__ void multiply(u32 (&d)[{c}], const u32 (&a)[{a}], const u32 (&b)[{b}]) {{\n    \
         asm(\"{} {}, {}, {}, {}{scales};\"\n        : {}\n        : {inputs});\n}}\n",
        variant.instruction(),
        list(0, c),
        list(c, a),
        list(c + a, b),
        list(0, c),
        operands("+r", "d", c),
    );
    text
}

fn tiles_header(tiles: &Tiles) -> String {
    let constants = [
        ("BLOCK_M", tiles.block_m),
        ("BLOCK_N", tiles.block_n),
        ("BLOCK_K", tiles.block_k),
        ("WARP_M", tiles.warp_m),
        ("WARP_N", tiles.warp_n),
        ("STAGES", tiles.stages),
        ("GROUP", tiles.group),
        ("CLUSTER", tiles.cluster),
    ];
    let mut text = String::from(
        "// Tiles of a CTA (block) and a warp, or warpgroup; BLOCK_K in bytes.\n#pragma once\n\n#include \"types.cuh\"\n\n",
    );
    for (name, value) in constants {
        let _ = writeln!(text, "constexpr u32 {name} = {value};");
    }
    text
}
