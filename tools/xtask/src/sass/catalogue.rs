//! Facts about the kernels that the crate knows and the machine code does not show. The facts are each kernel's launch
//! for a representative problem, and how much one pass over its main loop computes. The program's command `kernels`
//! lists the facts.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::process;
use sass::Instruction;

/// Bytes of a weight: half a byte of codes, and a scale for sixteen.
pub(crate) const WEIGHT_BYTES: f64 = 9.0 / 16.0;

/// The kernels by architecture and entry point.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    /// The problem that they are launched for.
    pub(crate) problem: String,
    kernels: BTreeMap<(String, String), Facts>,
}

/// The part of the output of `kernels --json` that is needed here.
#[derive(Deserialize)]
struct Listing {
    problem: String,
    archs: Vec<OfArch>,
}

#[derive(Deserialize)]
struct OfArch {
    arch: String,
    multiprocessors: u32,
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    entry: String,
    grid: Vec<u32>,
    threads: u32,
    dynamic_shared: u32,
    bytes_in_flight: u32,
    main_loop: Option<MainLoop>,
}

#[derive(Deserialize)]
struct MainLoop {
    #[serde(flatten)]
    step: Step,
    tensor_columns: u32,
}

/// A kernel's launch for the representative problem.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Facts {
    pub(crate) threads: u32,
    pub(crate) dynamic_shared: u32,
    pub(crate) tensor_columns: u32,
    /// The most CTAs that an SM gets, where there is room for them.
    pub(crate) launched: u32,
    /// Bytes of weights that a CTA has asked for at once.
    pub(crate) cta_bytes_in_flight: u32,
    /// The main loop's step; none for kernels that multiply nothing.
    pub(crate) step: Option<Step>,
}

/// The work of one pass over the main loop's source, before the compiler unrolls it.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Step {
    pub(crate) vectors: u32,
    /// Weights that a lane multiplies.
    #[serde(rename = "lane_weights")]
    pub(crate) weights: u32,
    pub(crate) products: Products,
}

/// The products by which the main loop is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Products {
    /// dp4a, twice for four products.
    Integer,
    /// FMAs on f16 pairs or f32. Others decode and scale, so that they do not tell how often the compiler unrolled;
    /// `#pragma unroll 1` in the source says once.
    Float,
    /// One matrix instruction a step.
    Matrix,
    /// `mma.sync`, one for eight of a lane's weights and so many vectors.
    WarpMatrix { vectors: u32 },
    /// `mma.sync` with block scales, one for 32 of a lane's weights and so many vectors.
    ScaledWarpMatrix { vectors: u32 },
    /// `wgmma`, one for eight of a lane's weights and all vectors.
    WarpgroupMatrix,
}

impl Products {
    pub(crate) fn is(self, instruction: &Instruction) -> bool {
        let name = instruction.name();
        match self {
            Self::Integer => name == "IDP",
            Self::Float => matches!(name, "HFMA2" | "FFMA" | "FFMA2"),
            Self::Matrix => name == "UTCOMMA",
            Self::WarpMatrix { .. } => matches!(name, "IMMA" | "HMMA"),
            Self::ScaledWarpMatrix { .. } => name == "OMMA",
            Self::WarpgroupMatrix => name == "HGMMA",
        }
    }
}

impl Step {
    /// Steps in one iteration of the compiled loop, which has so many of the instructions that it is known by.
    pub(crate) fn unrolled(&self, found: u32) -> Option<u32> {
        let each = match self.products {
            Products::Integer => self.weights * self.vectors / 2,
            Products::Float => return (found > 0).then_some(1),
            Products::Matrix => 1,
            Products::WarpMatrix { vectors } => self.weights / 8 * self.vectors.div_ceil(vectors),
            Products::ScaledWarpMatrix { vectors } => {
                self.weights / 32 * self.vectors.div_ceil(vectors)
            }
            Products::WarpgroupMatrix => self.weights / 8,
        };
        (found > 0 && found.is_multiple_of(each)).then(|| found / each)
    }
}

impl Catalogue {
    /// Asks the program for the kernels of these architectures.
    pub(crate) fn ask(program: &Path, archs: &[String]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["kernels", "--json"]);
        for arch in archs {
            command.args(["--arch", arch]);
        }
        let text = process::stdout(&mut command)?;
        Self::parse(&text).with_context(|| format!("`{}`", process::line(&command)))
    }

    fn parse(text: &str) -> Result<Self> {
        let listing: Listing = serde_json::from_str(text)?;
        let mut kernels = BTreeMap::new();
        for of_arch in listing.archs {
            for entry in of_arch.entries {
                let ctas: u32 = entry.grid.iter().product();
                let main_loop = entry.main_loop.as_ref();
                let facts = Facts {
                    threads: entry.threads,
                    dynamic_shared: entry.dynamic_shared,
                    tensor_columns: main_loop.map_or(0, |main| main.tensor_columns),
                    // A kernel that reads no weights is launched for a small problem, and says nothing of an SM.
                    launched: match entry.bytes_in_flight {
                        0 => u32::MAX,
                        _ => ctas.div_ceil(of_arch.multiprocessors),
                    },
                    cta_bytes_in_flight: entry.bytes_in_flight,
                    step: main_loop.map(|main| main.step),
                };
                kernels.insert((of_arch.arch.clone(), entry.entry), facts);
            }
        }
        Ok(Self {
            problem: listing.problem,
            kernels,
        })
    }

    /// Facts about an entry point of an architecture.
    pub(crate) fn facts(&self, arch: &str, entry: &str) -> Option<&Facts> {
        self.kernels.get(&(arch.to_owned(), entry.to_owned()))
    }
}

/// A catalogue for the tests here and elsewhere: integer products of four rows of one block, for one vector.
#[cfg(test)]
pub(crate) fn example() -> Facts {
    Facts {
        threads: 512,
        launched: 1,
        cta_bytes_in_flight: 16 * 32 * 4 * 9,
        step: Some(Step {
            vectors: 1,
            weights: 64,
            products: Products::Integer,
        }),
        ..Facts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_program_prints() {
        let text = r#"{"problem": "64x64", "archs": [{"arch": "90a", "multiprocessors": 100,
            "shared_bytes": 9, "entries": [
            {"entry": "gemv_a", "grid": [50, 3, 1], "threads": 64, "dynamic_shared": 5,
             "bytes_in_flight": 7, "main_loop": {"lane_weights": 32, "vectors": 2,
             "products": {"warp-matrix": {"vectors": 8}}, "tensor_columns": 9}},
            {"entry": "read", "grid": [1, 1, 1], "threads": 32, "dynamic_shared": 0,
             "bytes_in_flight": 0, "main_loop": null},
            {"entry": "gemv_b", "grid": [50, 3, 1], "threads": 64, "dynamic_shared": 5,
             "bytes_in_flight": 7, "main_loop": {"lane_weights": 32, "vectors": 2,
             "products": "warpgroup-matrix", "tensor_columns": 0}}]}]}"#;
        let catalogue = Catalogue::parse(text).unwrap();
        let facts = catalogue.facts("90a", "gemv_a").unwrap();
        assert_eq!((facts.threads, facts.launched), (64, 2));
        assert_eq!(facts.tensor_columns, 9);
        assert_eq!(
            facts.step.unwrap().products,
            Products::WarpMatrix { vectors: 8 }
        );
        let of_warpgroups = catalogue.facts("90a", "gemv_b").unwrap().step.unwrap();
        assert_eq!(of_warpgroups.products, Products::WarpgroupMatrix);
        assert!(catalogue.facts("90a", "read").unwrap().step.is_none());
        assert!(catalogue.facts("80", "read").is_none());
    }

    #[test]
    fn unrolling_shows_in_the_products() {
        let step = example().step.unwrap();
        assert_eq!(step.unrolled(32), Some(1));
        assert_eq!(step.unrolled(64), Some(2));
        assert_eq!(step.unrolled(33), None);
        assert_eq!(step.unrolled(0), None);
    }

    #[test]
    fn matrix_instructions_of_a_warpgroup_take_all_vectors() {
        let of = |products| Step {
            vectors: 32,
            weights: 64,
            products,
        };
        let warp = of(Products::WarpMatrix { vectors: 8 });
        assert_eq!((warp.unrolled(32), warp.unrolled(8)), (Some(1), None));
        let group = of(Products::WarpgroupMatrix);
        assert_eq!((group.unrolled(8), group.unrolled(12)), (Some(1), None));
        let scaled = of(Products::ScaledWarpMatrix { vectors: 8 });
        assert_eq!((scaled.unrolled(8), scaled.unrolled(2)), (Some(1), None));
        let text =
            "/*0000*/ OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X R16, R16, R8, RZ, R30, R44, URZ ;";
        let instruction = Instruction::parse(text).unwrap();
        assert!(scaled.products.is(&instruction) && !warp.products.is(&instruction));
        let text = "/*0000*/ HGMMA.64x32x16.F32 R24, R4, gdesc[UR8], R24, gsb0 ;";
        let instruction = Instruction::parse(text).unwrap();
        assert!(group.products.is(&instruction));
        assert!(!warp.products.is(&instruction));
    }
}
