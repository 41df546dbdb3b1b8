//! Calls that are planned as parts of a chain, and run at the same time as the launches around them.

use std::sync::Arc;

use nvfp4_gemv::kernel::{Config, plan};
use nvfp4_gemv_simulate::ptx::Entry;
use ptx_sim::{Launch, Multiprocessors, Options, SimError};

use super::operands::{Case, Operands};
use super::ptx;
use super::schedules::few;
use super::sim::{Loaded, Simulator, launches};

/// The instruction that waits for the grid before.
pub(crate) const WAIT: &str = "griddepcontrol.wait;";

/// A launch with its code.
pub(crate) type Ready = (Arc<Entry>, Launch);

/// A call in memory, planned as one of a chain.
#[derive(Clone)]
pub(crate) struct Chained {
    loaded: Loaded,
    pub(crate) planned: Vec<plan::Launch>,
    roundings: u32,
    pub(crate) on: Multiprocessors,
    pub(crate) context: String,
    arch: &'static str,
}

/// A kernel that lets dependents start at once, and executes `late` long after. The code `late` may use the registers
/// `%p`, `%r2` to `%r4`, `%rd1` and `%rd2`, and the 16 bytes of shared memory `columns`.
pub(crate) fn late_kernel(arch: &str, name: &str, parameters: &str, late: &str) -> Arc<Entry> {
    let text = format!(
        "
.version 9.0
.target sm_{arch}
.address_size 64
.visible .entry {name}({parameters}) {{
    .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %rd<3>; .shared .align 16 .b8 columns[16];
    griddepcontrol.launch_dependents;
    mov.u32 %r1, 0;
LATE:
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p, %r1, 5000;
    @%p bra LATE;
{late}
    ret;
}}
"
    );
    Arc::new(Entry::new(&text, name))
}

impl Chained {
    pub(crate) fn new(simulator: &Simulator, case: &Case, config: Config) -> Self {
        let mut loaded = Loaded::new(&Arc::new(Operands::new(case)), simulator.arch);
        let plan = loaded.plan(config, &simulator.gpu, true);
        Self {
            loaded,
            planned: plan
                .launches()
                .iter()
                .flat_map(plan::Launch::parts)
                .collect(),
            roundings: config.roundings(&case.shape, case.activation),
            on: Multiprocessors::default(),
            context: format!("{config:?}, {case:?}"),
            arch: simulator.arch,
        }
    }

    pub(crate) fn shared(&self) -> u32 {
        let all = self.planned.iter().map(|launch| launch.dynamic_shared);
        all.max().unwrap_or(0)
    }

    /// The launches of the call, with code that `edit` has changed.
    pub(crate) fn ready(&self, edit: impl Fn(&str) -> String) -> Vec<Ready> {
        let of = |planned: &plan::Launch| {
            let text = edit(&ptx::unit(planned.unit, self.arch));
            let entry = Arc::new(Entry::new(&text, planned.entry));
            let launches = launches(planned).expect("a valid launch").into_iter();
            launches.map(move |launch| (entry.clone(), launch))
        };
        self.planned.iter().flat_map(of).collect()
    }

    /// Operands that a grid before may write, with their addresses.
    pub(crate) fn late_operands(&self) -> Vec<(&'static str, u64)> {
        const LATE: [&str; 7] = [
            "select",
            "vectors",
            "vector scales",
            "row alpha",
            "vector alpha",
            "bias",
            "residual",
        ];
        let of = |name| Some((name, *self.loaded.memory.addresses.get(name)?));
        let late = |name: &&str| *name != "select" || self.loaded.operands.case.late;
        LATE.into_iter().filter(late).filter_map(of).collect()
    }

    /// A [late kernel](late_kernel) that writes a byte of each operand that a grid before may write, and then executes
    /// `behind`.
    pub(crate) fn writer(&self, behind: &str) -> Ready {
        let addresses: Vec<u64> = self.late_operands().into_iter().map(|(_, at)| at).collect();
        self.writer_of(&addresses, behind)
    }

    /// A [late kernel](late_kernel) that writes a byte at each address, and then executes `behind`.
    pub(crate) fn writer_of(&self, addresses: &[u64], behind: &str) -> Ready {
        let mut launch = Launch::new("writer", [1, 1, 1], [32, 1, 1]);
        let mut late = "mov.u32 %r3, %tid.x;\nsetp.eq.u32 %p, %r3, 0;\n".to_string();
        let mut parameters = Vec::new();
        for (i, address) in addresses.iter().enumerate() {
            launch = launch.bytes(&address.to_le_bytes());
            parameters.push(format!(".param .u64 operand{i}"));
            late += &format!(
                "ld.param.u64 %rd1, [operand{i}];\n@%p ld.global.u8 %r4, [%rd1];\n@%p st.global.u8 [%rd1], %r4;\n"
            );
        }
        late += behind;
        let kernel = late_kernel(self.arch, "writer", &parameters.join(", "), &late);
        (kernel, launch)
    }

    /// Runs launches at the same time. The result must be right if they end.
    pub(crate) fn run(&self, all: &[Ready], options: &Options) -> Result<(), SimError> {
        let mut loaded = self.loaded.clone();
        let all: Vec<_> = all.iter().map(|(e, l)| (&e.program, l)).collect();
        loaded.memory.overlapped(&all, options, self.on)?;
        assert_eq!(loaded.difference(self.roundings), None, "{}", self.context);
        Ok(())
    }

    /// Demands that the launches run to their end with the right result, under each of a few schedules.
    pub(crate) fn demand_right(&self, all: &[Ready], seed: u64) {
        for options in few(seed) {
            let ran = self.run(all, &options);
            ran.unwrap_or_else(|error| panic!("{error}: {}, {options:?}", self.context));
        }
    }
}
