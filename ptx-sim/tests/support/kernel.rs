//! Loads a conformance kernel and lays out the memory of a case.

use crate::data::{Case, Value};
use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};
use ptx_sim::{Buffer, Launch, Module, Program, Sim, SimError};

pub(crate) struct Kernel {
    pub(crate) module: Module,
    pub(crate) program: Program,
}

pub(crate) fn load(entry: &str) -> Kernel {
    let path = format!("{}/conformance/ptx/{entry}.ptx", env!("CARGO_MANIFEST_DIR"));
    let module = Module::parse(&std::fs::read_to_string(&path).expect(&path)).expect(entry);
    let program = Program::new(&module, entry).expect(entry);
    Kernel { module, program }
}

/// The machine before the launch, the launch, and the buffer that holds the result.
pub(crate) fn prepare(kernel: &Kernel, case: &Case) -> Result<(Sim, Launch, Buffer), SimError> {
    let mut sim = Sim::new(kernel.module.clone());
    let mut launch = Launch::new(case.entry, case.grid, case.block);
    launch.cluster = Some(case.cluster);
    launch.shared = case.dynamic_shared;
    let mut out = None;
    for p in &case.params {
        launch = match &p.value {
            Value::U32(v) => launch.u32(*v),
            Value::Input(bytes) => {
                let b = sim.upload(p.name, bytes)?;
                launch.buffer(b)
            }
            Value::Output(n) => {
                let b = sim.alloc(p.name, *n)?;
                out = Some(b);
                launch.buffer(b)
            }
            Value::Map(map, bytes) => {
                let b = sim.upload(p.name, bytes)?;
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
                launch.tensor_map(TensorMap::encode(args).expect("a valid tensor map"))
            }
        };
    }
    Ok((sim, launch, out.expect("an output")))
}
