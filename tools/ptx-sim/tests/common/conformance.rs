//! Loads and runs the kernels of `conformance/`.

use super::data::{self, Case, Value};
use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};
use ptx_sim::{Buffer, Launch, Module, Options, Program, Report, Sim, SimError};

pub(crate) fn module(entry: &str) -> Module {
    let path = format!("{}/conformance/ptx/{entry}.ptx", env!("CARGO_MANIFEST_DIR"));
    Module::parse(&std::fs::read_to_string(&path).expect(&path)).expect(entry)
}

/// A case in the simulator's memory.
pub(crate) struct Loaded {
    pub(crate) sim: Sim,
    pub(crate) launch: Launch,
    pub(crate) out: Buffer,
    expected: Vec<f32>,
}

impl Loaded {
    pub(crate) fn new(module: &Module, case: &Case) -> Self {
        let mut sim = Sim::new(module.clone());
        let mut launch = Launch::new(case.entry, case.grid, case.block);
        launch.cluster = Some(case.cluster);
        launch.shared = case.dynamic_shared;
        let mut out = None;
        for p in &case.params {
            launch = match &p.value {
                Value::U32(v) => launch.u32(*v),
                Value::Input(bytes) => {
                    let b = sim.upload(p.name, bytes).expect(p.name);
                    launch.buffer(b)
                }
                Value::Output(n) => {
                    let b = sim.alloc(p.name, *n).expect(p.name);
                    out = Some(b);
                    launch.buffer(b)
                }
                Value::Map(map, bytes) => {
                    let b = sim.upload(p.name, bytes).expect(p.name);
                    launch.tensor_map(tensor_map(map, b))
                }
            };
        }
        Self {
            sim,
            launch,
            out: out.expect("an output"),
            expected: case.expected.clone(),
        }
    }

    /// Runs a program; says what is wrong with its output.
    pub(crate) fn run(
        &self,
        program: &Program,
        launch: &Launch,
        options: &Options,
    ) -> Result<(Report, Option<String>), SimError> {
        let mut sim = self.sim.clone();
        let report = sim.run_program(program, launch, options, None)?;
        let mut wrong =
            (!sim.fully_written(self.out)).then(|| "an output byte is not written".into());
        let got = sim.words(self.out).into_iter();
        for (i, (got, want)) in got.zip(&self.expected).enumerate() {
            if got != want.to_bits() {
                wrong = Some(format!(
                    "element {i}: {} instead of {want}",
                    f32::from_bits(got)
                ));
                break;
            }
        }
        Ok((report, wrong))
    }
}

fn tensor_map(map: &data::TensorMap, b: Buffer) -> TensorMap {
    let args = TensorMapArgs {
        data_type: DataType::Uint8,
        global_address: b.address,
        global_dim: map.dims.to_vec(),
        global_strides: vec![map.stride],
        box_dim: map.box_dims.to_vec(),
        element_strides: vec![1, 1],
        interleave: Interleave::None,
        swizzle: Swizzle::B128,
        l2_promotion: L2Promotion::None,
        oob_fill: OobFill::Zero,
    };
    TensorMap::encode(args).expect("a valid tensor map")
}
