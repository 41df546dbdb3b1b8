//! Limits of a kernel's main loop, estimated from its instructions: no measurement.

use serde::Serialize;

use crate::sass::catalogue::WEIGHT_BYTES;
use crate::sass::figures::Figures;
use crate::sass::gpu::{ALU, Gpu, INTEGER_MULTIPLY, ISSUE, LATENCY, SHARED_BYTES, SPECIAL};

/// For each resource, how many times the memory's rate it could keep up with. Below one, it limits.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Estimate {
    pub(crate) resources: Vec<Resource>,
    /// The resource that gives the least; memory where none is below it.
    pub(crate) limit: &'static str,
    /// Share of the memory's rate that the limit allows, at most one.
    pub(crate) share: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Resource {
    pub(crate) name: &'static str,
    pub(crate) of_memory: f64,
}

impl Estimate {
    pub(crate) fn of(figures: &Figures, gpu: &Gpu) -> Option<Self> {
        let main = figures.main.as_ref()?;
        // Weights a clock and SM.
        let memory = gpu.bytes_per_clock() / WEIGHT_BYTES;
        let rate = |used: u32, a_clock: f64| match used {
            0 => f64::INFINITY,
            used => a_clock * f64::from(main.weights) / f64::from(used),
        };
        // Little's law.
        let seconds = |clocks: f64| clocks / (f64::from(gpu.megahertz) * 1e6);
        let in_flight = f64::from(figures.bytes_in_flight) / WEIGHT_BYTES;
        let latency = in_flight / LATENCY * seconds(1.0);
        let rates = [
            ("issue", rate(main.instructions, ISSUE)),
            ("ALU", rate(main.alu, ALU)),
            ("IMAD", rate(main.integer_multiply, INTEGER_MULTIPLY)),
            ("special", rate(main.special, SPECIAL)),
            ("shared", rate(main.shared_bytes, SHARED_BYTES)),
            ("latency", latency),
        ];
        let resources: Vec<Resource> = rates
            .iter()
            .map(|&(name, rate)| Resource {
                name,
                of_memory: rate / memory,
            })
            .filter(|resource| resource.of_memory.is_finite())
            .collect();
        let memory = Resource {
            name: "memory",
            of_memory: 1.0,
        };
        let least = resources
            .iter()
            .copied()
            .fold(memory, |a, b| if b.of_memory < a.of_memory { b } else { a });
        Some(Self {
            limit: least.name,
            share: least.of_memory,
            resources,
        })
    }

    pub(crate) fn of_memory(&self, name: &str) -> Option<f64> {
        let found = self.resources.iter().find(|resource| resource.name == name);
        found.map(|resource| resource.of_memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sass::catalogue::example;
    use crate::sass::figures::MainLoop;

    fn figures(main: MainLoop, bytes_in_flight: u32) -> Figures {
        let gpu = Gpu::of_arch("90a").unwrap();
        Figures {
            gpu: gpu.name,
            facts: example(),
            ctas_per_sm: 1,
            ctas_limited_by: "launched",
            bytes_in_flight,
            widest_global_load: 64,
            widest_shared_load: 128,
            main: Some(main),
            problem: None,
        }
    }

    fn estimate(instructions: u32, alu: u32, bytes_in_flight: u32) -> Estimate {
        let main = MainLoop {
            instructions,
            alu,
            weights: 100,
            vectors: 1,
            ..MainLoop::default()
        };
        let gpu = Gpu::of_arch("90a").unwrap();
        Estimate::of(&figures(main, bytes_in_flight), gpu).unwrap()
    }

    #[test]
    fn the_scarcest_resource_limits() {
        let good = estimate(300, 150, 64 << 10);
        assert_eq!((good.limit, good.share), ("memory", 1.0));
        // An H200 has 4.5 issue slots a weight, and half as many of the integer pipe.
        let issue = estimate(900, 150, 64 << 10);
        assert_eq!(issue.limit, "issue");
        assert!((issue.share - 0.5).abs() < 0.02, "{}", issue.share);
        assert_eq!(estimate(500, 400, 64 << 10).limit, "ALU");
        // 18 KiB x 132 SMs / 0.9 us = 2.7 TB/s.
        let latency = estimate(300, 150, 18 << 10);
        assert_eq!(latency.limit, "latency");
        assert!((latency.share - 0.647).abs() < 0.01, "{}", latency.share);
        assert_eq!(good.of_memory("special"), None);
    }
}
