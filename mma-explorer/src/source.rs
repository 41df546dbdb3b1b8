//! The CUDA sources: the kernels of `csrc`, which are embedded, and headers that say which instruction and which tiles.

use std::fmt::Write;

use crate::arch::Arch;
use crate::matmul::Tiles;
use crate::nvrtc::Source;
use crate::types::Type;
use crate::variants::{Emission, Family, Variant};

const EMBEDDED: [(&str, &str); 2] = [
    ("types.cuh", include_str!("../csrc/types.cuh")),
    ("memory.cuh", include_str!("../csrc/memory.cuh")),
];

/// What is passed to NVRTC beside the architecture.
pub fn options() -> Vec<String> {
    vec!["--std=c++17".into(), "--generate-line-info".into()]
}

/// A kernel of one instruction for each of several, of any family: [`kernel_of_one`]. They are compiled and read, not run.
pub fn survey(variants: &[Variant]) -> Source {
    let mut text = String::from("#include \"types.cuh\"\n");
    for (i, variant) in variants.iter().enumerate() {
        let name = kernel_of_one(i);
        let _ = match variant.family() {
            Family::Mma => write!(
                text,
                "\nnamespace variant_{i} {{\n{}\n#define NAME {name}\n#include \"one.cuh\"\n#undef NAME\n}}\n",
                instruction(variant),
            ),
            Family::Wgmma => write!(text, "\n{}", one_wgmma(variant, &name)),
            Family::Tcgen05 => write!(text, "\n{}", one_tcgen05(variant, &name)),
        };
    }
    let one = ("one.cuh", include_str!("../csrc/one.cuh").to_string());
    source("survey.cu", &text, [one])
}

/// A kernel of one `wgmma`, A and B in shared memory: what machine code is made of it.
fn one_wgmma(variant: &Variant, name: &str) -> String {
    let registers = variant.shape.n / 2 * variant.accumulator.bits() / 32;
    let (ty, constraint) = match variant.accumulator {
        Type::F32 => ("float", "f"),
        _ => ("u32", "r"),
    };
    let list: Vec<_> = (0..registers).map(|i| format!("%{i}")).collect();
    let outputs: Vec<_> = (0..registers)
        .map(|i| format!("\"+{constraint}\"(d[{i}])"))
        .collect();
    // Floats can be negated, and 16-bit ones transposed.
    let modes = match (variant.a.is_integer(), variant.a.bits()) {
        (true, _) => "",
        (false, 16) => ", 1, 1, 0, 0",
        (false, _) => ", 1, 1",
    };
    let (a, b, more) = (registers, registers + 1, registers + 2);
    format!(
        "// {variant_name}\nextern \"C\" __global__ void {name}({ty} *out, u64 a, u64 b, u32 more) {{\n    \
         {ty} d[{registers}];\n    \
         for (u32 i = 0; i < {registers}; ++i) d[i] = out[i * 128 + threadIdx.x];\n    \
         asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");\n    \
         asm volatile(\"{{.reg .pred p; setp.ne.b32 p, %{more}, 0; {instruction} {{{list}}}, %{a}, %{b}, p{modes};}}\"\n        \
         : {outputs}\n        : \"l\"(a), \"l\"(b), \"r\"(more));\n    \
         asm volatile(\"wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n    \
         for (u32 i = 0; i < {registers}; ++i) out[i * 128 + threadIdx.x] = d[i];\n}}\n",
        variant_name = variant.name(),
        instruction = variant.instruction(),
        list = list.join(", "),
        outputs = outputs.join(", "),
    )
}

/// A kernel of one `tcgen05.mma`. Types and shape are in `what`, the instruction descriptor.
fn one_tcgen05(variant: &Variant, name: &str) -> String {
    let scales = if variant.scale().is_some() {
        ", [%5], [%6]"
    } else {
        ""
    };
    format!(
        "// {}\nextern \"C\" __global__ void {name}(u32 d, u64 a, u64 b, u32 what, u32 more, u32 scale_a, u32 scale_b) {{\n    \
         asm volatile(\"{{.reg .pred p; setp.ne.b32 p, %4, 0; {} [%0], %1, %2, %3{scales}, p;}}\"\n        \
         ::\"r\"(d), \"l\"(a), \"l\"(b), \"r\"(what), \"r\"(more), \"r\"(scale_a), \"r\"(scale_b) : \"memory\");\n}}\n",
        variant.name(),
        variant.instruction(),
    )
}

/// The name of a variant's kernel in a [`survey`], by its place there.
pub fn kernel_of_one(place: usize) -> String {
    format!("one_{place}")
}

/// The kernels `latency` and `throughput` of an instruction, for an architecture: where the instruction is emulated there
/// they have a change of A between instructions.
pub fn measure(variant: &Variant, arch: Arch) -> Source {
    let emulated = variant
        .machine(arch)
        .is_some_and(|machine| machine.emission == Emission::Emulated);
    let text = format!(
        "{}\nconstexpr bool EMULATED = {emulated};\n",
        instruction(variant)
    );
    source(
        "measure.cu",
        include_str!("../csrc/measure.cu"),
        [("instruction.cuh", header(&text))],
    )
}

/// The kernel `matmul`.
pub fn matmul(variant: &Variant, tiles: &Tiles) -> Source {
    source(
        "matmul.cu",
        include_str!("../csrc/matmul.cu"),
        [
            ("instruction.cuh", header(&instruction(variant))),
            ("tiles.cuh", tiles_header(tiles)),
        ],
    )
}

fn source<const N: usize>(name: &str, text: &str, made: [(&str, String); N]) -> Source {
    let embedded = EMBEDDED.map(|(name, text)| (name.to_string(), text.to_string()));
    let made = made.map(|(name, text)| (name.to_string(), text));
    Source {
        name: name.into(),
        text: text.into(),
        headers: embedded.into_iter().chain(made).collect(),
    }
}

/// A header of its own.
fn header(text: &str) -> String {
    format!("#pragma once\n\n#include \"types.cuh\"\n\n{text}")
}

/// Sizes of a `mma.sync` variant, and `multiply`, which is the instruction.
pub(crate) fn instruction(variant: &Variant) -> String {
    let [a, b, c] = variant.registers();
    let mut text = format!("// {}\n", variant.name());
    let constants = [
        ("INSTRUCTION_M", variant.shape.m),
        ("INSTRUCTION_N", variant.shape.n),
        ("INSTRUCTION_K_BYTES", variant.k_bytes()),
        ("A_REGISTERS", a),
        ("B_REGISTERS", b),
        ("C_REGISTERS", c),
        ("ACCUMULATOR_BITS", variant.accumulator.bits()),
    ];
    for (name, value) in constants {
        let _ = writeln!(text, "constexpr u32 {name} = {value};");
    }
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
        let one = match scale.ty {
            "ue4m3" => 0x3838_3838u32,
            _ => 0x7f7f_7f7f,
        };
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
    ];
    let mut text = String::from(
        "// Tiles of a CTA (block) and a warp; BLOCK_K in bytes.\n#pragma once\n\n#include \"types.cuh\"\n\n",
    );
    for (name, value) in constants {
        let _ = writeln!(text, "constexpr u32 {name} = {value};");
    }
    text
}
