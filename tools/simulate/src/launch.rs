//! Launch plans as ptx-sim takes them, and the memory that they work on.

use std::collections::BTreeMap;

use nvfp4_gemv::Gpu;
use nvfp4_gemv::RawWorkspace;
use nvfp4_gemv::kernel::params::{NVFP4_SWIZZLE_128, nvfp4_tensor_map};
use nvfp4_gemv::kernel::{Call, plan};
use ptx_sim::memory::Observer;
use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};
use ptx_sim::{Buffer, Launch, Multiprocessors, Options, Program, Report, Sim, SimError, Trace};

use crate::operands::Operands;

/// The GPU that code for an architecture is planned for: the largest one of its kind.
pub fn gpu(arch: &'static str) -> Gpu {
    let number: i32 = arch[..arch.len() - usize::from(arch.ends_with('a'))]
        .parse()
        .expect("a number");
    Gpu::of_compute_capability((number / 10, number % 10), arch)
}

/// Memory without a kernel's code, which each run brings along.
pub fn empty(arch: &str) -> Sim {
    let head = format!(".version 9.0\n.target sm_{arch}\n.address_size 64\n");
    Sim::new(ptx_sim::Module::parse(&head).expect("a module without kernels"))
}

/// A problem in the simulator's memory.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The problem by address.
    pub call: Call,
    /// Addresses of the operands that there are, by the names of their buffers.
    pub addresses: BTreeMap<String, u64>,
    sim: Sim,
    output: Buffer,
    workspace: Option<Buffer>,
}

impl Loaded {
    /// Operands, and room for the result.
    pub fn new(operands: &Operands, arch: &str) -> Self {
        let mut sim = empty(arch);
        let output = match operands.output_before() {
            None => sim.alloc("output", operands.output_bytes()),
            Some(bytes) => sim.upload("output", &bytes),
        };
        let output = output.expect("memory");
        let mut addresses = BTreeMap::new();
        let call = operands.call(output.address, |name, bytes| {
            let address = sim.upload(name, bytes).expect("memory").address;
            addresses.insert(name.to_string(), address);
            address
        });
        Self {
            call,
            addresses,
            sim,
            output,
            workspace: None,
        }
    }

    /// Gives the call a workspace of so many bytes that nobody has written yet, but for the zeros in front.
    pub fn give_workspace(&mut self, bytes: u64) {
        let address = match bytes {
            0 => 0,
            _ => {
                let buffer = self.sim.alloc("workspace", bytes as usize);
                let buffer = buffer.expect("memory");
                let counters = vec![0; bytes.min(RawWorkspace::COUNTER_BYTES) as usize];
                let written = self.sim.write(buffer, 0, &counters);
                written.expect("the front of a buffer");
                self.workspace = Some(buffer);
                buffer.address
            }
        };
        let workspace = RawWorkspace { address, bytes };
        let call = self.call.with_workspace(workspace);
        self.call = call.expect("the simulator aligns memory, and lays it apart");
    }

    /// Runs one launch.
    ///
    /// # Errors
    /// Actions of the kernel that the ISA does not allow, a deadlock, a launch that a GPU would refuse.
    pub fn launch(
        &mut self,
        program: &Program,
        launch: &Launch,
        options: &Options,
    ) -> Result<Report, SimError> {
        self.sim.run_program(program, launch, options, None)
    }

    /// Runs one launch, and shows all its accesses and synchronisation to somebody.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch), and what the observer refuses.
    pub fn observed(
        &mut self,
        program: &Program,
        launch: &Launch,
        options: &Options,
        observer: &mut dyn Observer,
    ) -> Result<Report, SimError> {
        self.sim
            .run_program(program, launch, options, Some(observer))
    }

    /// Runs launches at the same time, as far as they are dependent ones.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch), and accesses of one that conflict with another's.
    pub fn overlapped(
        &mut self,
        launches: &[(&Program, &Launch)],
        options: &Options,
        on: Multiprocessors,
    ) -> Result<Vec<Report>, SimError> {
        self.sim.run_overlapped(launches, options, on)
    }

    /// Runs one launch and records what it does.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch).
    pub fn traced(
        &mut self,
        program: &Program,
        launch: &Launch,
        options: &Options,
    ) -> Result<Trace, SimError> {
        let limit = ptx_sim::trace::DEFAULT_LIMIT;
        let (result, trace) = self.sim.run_traced(program, launch, options, limit);
        result.map(|_| trace)
    }

    /// The result's bytes.
    pub fn output(&self) -> &[u8] {
        self.sim.download(self.output)
    }

    /// Whether the front of the workspace is zeros, as the next call needs it.
    pub fn counters_are_zeros(&self) -> bool {
        let bytes = self.workspace.map(|buffer| self.sim.download(buffer));
        let counters = bytes.into_iter().flatten();
        let mut counters = counters.take(RawWorkspace::COUNTER_BYTES as usize);
        counters.all(|&byte| byte == 0)
    }

    /// Whether every byte of the result was written.
    pub fn fully_written(&self) -> bool {
        self.sim.fully_written(self.output)
    }
}

/// A planned launch as the simulator takes it, for each of its parts.
///
/// # Errors
/// A tensor map that the driver would refuse.
pub fn launches(planned: &plan::Launch) -> Result<Vec<Launch>, SimError> {
    planned.parts().map(|part| launch(&part)).collect()
}

fn launch(planned: &plan::Launch) -> Result<Launch, SimError> {
    let mut launch = Launch::new(planned.entry, planned.grid, [planned.threads, 1, 1]);
    launch.cluster = (planned.cluster > 0).then_some([planned.cluster, 1, 1]);
    launch.shared = planned.dynamic_shared;
    launch.dependent = planned.dependent;
    let mut maps = Vec::new();
    for map in &planned.maps {
        let map = TensorMap::encode(arguments(map));
        let map = map.map_err(|error| SimError::Launch(format!("tensor map: {error}")))?;
        maps.extend(map.to_bytes());
    }
    if !maps.is_empty() {
        launch = launch.bytes(&maps);
    }
    Ok(launch.bytes(planned.parameters.bytes()))
}

/// The arguments that `src/raw/driver/maps.rs` gives to the driver.
pub fn arguments(map: &nvfp4_tensor_map) -> TensorMapArgs {
    let rank = map.rank as usize;
    TensorMapArgs {
        data_type: DataType::Uint8,
        global_address: map.address,
        global_dim: map.size[..rank].to_vec(),
        global_strides: map.stride[1..rank].to_vec(),
        box_dim: map.box_size[..rank].to_vec(),
        element_strides: vec![1; rank],
        interleave: Interleave::None,
        swizzle: if map.swizzle == NVFP4_SWIZZLE_128 {
            Swizzle::B128
        } else {
            Swizzle::None
        },
        l2_promotion: L2Promotion::B256,
        oob_fill: OobFill::Zero,
    }
}
