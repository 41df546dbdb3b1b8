//! Straight-line f32: the cost of an ordinary instruction.

use std::time::Instant;

use ptx_sim::{Launch, Module, Options, Sim, SimError};

const LENGTH: usize = 1000;

/// Thread-instructions executed, and seconds.
pub(super) fn run(millions: u64) -> Result<(u64, f64), SimError> {
    let mut body = String::new();
    for i in 0..LENGTH {
        let (d, a, b) = (i % 8, (i + 1) % 8, (i + 3) % 8);
        body += &match i % 3 {
            0 => format!("fma.rn.f32 %f{d}, %f{a}, %f{b}, %f{d};\n"),
            1 => format!("mul.rn.f32 %f{d}, %f{a}, %f{b};\n"),
            _ => format!("add.rn.f32 %f{d}, %f{a}, %f{b};\n"),
        };
    }
    let ptx = format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k() {{\n\
         .reg .f32 %f<8>;\n{body}ret;\n}}"
    );
    let mut sim = Sim::new(Module::parse(&ptx)?);
    let program = sim.program("k")?;
    let per_cta = 256 * (LENGTH as u64 + 1);
    let ctas = (millions.saturating_mul(1_000_000) / per_cta).clamp(1, 1 << 30);
    let launch = Launch::new("k", [ctas as u32, 1, 1], [256, 1, 1]);
    let options = Options {
        budget: u64::MAX,
        ..Options::default()
    };
    let started = Instant::now();
    let r = sim.run_program(&program, &launch, &options, None)?;
    Ok((r.thread_instructions, started.elapsed().as_secs_f64()))
}
