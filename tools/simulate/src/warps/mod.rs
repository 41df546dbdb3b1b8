//! Pictures of what the warps of each kernel do, made from traces of small problems.

pub mod lanes;
pub mod svg;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use nvfp4_gemv::kernel::{Config, RingConfig, StreamConfig};
use nvfp4_gemv::{Activation, Dims, FloatType, GlobalScale, ScaleLayout, Shape, Strides};
use ptx_sim::{Options, Policy, Timing, Trace};

use self::lanes::{Activity, Lane};
use self::svg::Texts;
use crate::launch::{self, Loaded, launches};
use crate::operands::Operands;
use crate::ptx;

/// Code for which the kernels are compiled: compute capability 9.0.
const ARCH: &str = "90a";

/// A kernel whose warps are drawn. `direct` loads weights into registers. In the simulator such a load is over at once,
/// so a picture would show nothing of what its warps wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Drawn {
    /// Producer warps fill a ring, groups of warps multiply.
    Ring,
    /// Each warp has a queue of its own.
    Stream,
}

/// The launch that is run for a picture.
#[derive(Clone, Debug)]
struct Scene {
    config: Config,
    m: usize,
    k: usize,
    layout: ScaleLayout,
    /// Steps that a copy takes.
    latency: u32,
    /// The warps that are shown, and what they are called.
    warps: Vec<(u64, String)>,
    /// The instruction that multiplies.
    product: &'static str,
    /// The problem and its config, in a few words.
    about: &'static str,
}

impl Drawn {
    fn name(self) -> &'static str {
        match self {
            Drawn::Ring => "ring",
            Drawn::Stream => "stream",
        }
    }

    fn scene(self) -> Scene {
        match self {
            Drawn::Ring => Scene {
                config: Config::from(RingConfig {
                    chunks: 1,
                    groups: 2,
                    rows: 4,
                    depth: 2,
                    ctas: 1,
                    ..RingConfig::DEFAULT
                }),
                m: 40,
                k: 1024,
                layout: ScaleLayout::Linear,
                latency: 1400,
                warps: named(&["producer 0", "producer 1", "group 0", "group 1"]),
                product: "dp4a",
                about: "40 rows of 1024 elements; two groups of one warp; a ring with room for two units a group. \
                        Numbers are units of four rows. At the end a group waits for scales past its last unit: zeros.",
            },
            Drawn::Stream => Scene {
                config: Config::from(StreamConfig {
                    warps: 3,
                    stages: 3,
                    vectors: 1,
                    fetch: 128,
                    ctas: 1,
                    ..StreamConfig::DEFAULT
                }),
                m: 48,
                k: 2048,
                layout: ScaleLayout::Linear,
                latency: 2500,
                warps: named(&["warp 0", "warp 1", "warp 2"]),
                product: "mma.sync",
                about: "48 rows of 2048 elements: 24 steps, eight for each of three warps, whose queues hold three.",
            },
        }
    }

    /// A trace of the only CTA's warps.
    ///
    /// # Errors
    /// A config that does not fit its problem; a run that breaks a rule.
    fn trace(self) -> Result<Trace> {
        let scene = self.scene();
        let mut loaded = Loaded::new(&operands(&scene)?, ARCH);
        let plan = scene.config.plan(&loaded.call, &launch::gpu(ARCH), false)?;
        let [planned] = plan.launches() else {
            bail!("several launches");
        };
        let launch = launches(planned)?.into_iter().next();
        let launch = launch.context("a launch without parts")?;
        let program = &ptx::entry(&launch.kernel, ARCH).program;
        let options = Options {
            policy: Policy::Fair,
            timing: Timing::After(scene.latency),
            ..Options::default()
        };
        let trace = loaded.traced(program, &launch, &options)?;
        if !loaded.fully_written() {
            bail!("an element of the result was not written");
        }
        Ok(trace)
    }

    /// The picture of it, as SVG.
    ///
    /// # Errors
    /// Why the simulator cannot run it.
    pub fn picture(self) -> Result<String> {
        let (scene, trace) = (self.scene(), self.trace()?);
        let lanes = lanes::lanes(&trace, &scene.warps, scene.product);
        let name = self.name();
        let labels: Vec<&str> = lanes.iter().map(|lane| lane.label.as_str()).collect();
        let texts = Texts {
            title: format!("{name}: a CTA's warps in the simulator"),
            description: format!(
                "What {} do over simulated steps: {}",
                labels.join(", "),
                scene.about
            ),
            caption: vec![
                format!(
                    "Simulated steps, not time on hardware: a step is an instruction of one warp, warps take turns, \
                     and copies land {} steps after they were issued.",
                    scene.latency
                ),
                scene.about.into(),
            ],
        };
        let numbers = self.numbers(&lanes);
        Ok(svg::svg(&lanes, &numbers, trace.steps, &texts))
    }

    /// The units that the stretches of multiplication are.
    fn numbers(self, lanes: &[Lane]) -> Vec<Vec<u64>> {
        if self != Drawn::Ring {
            return Vec::new();
        }
        // Producers come first, one for each group; groups take units in turn.
        let groups = lanes.len() / 2;
        let unit = |(lane, of): (usize, &Lane)| {
            let group = lane.saturating_sub(groups) as u64;
            let stretches = of.stretches.iter();
            let units = stretches.filter(|stretch| stretch.activity == Activity::Multiplies);
            let units = units.enumerate();
            units
                .map(|(turn, _)| group + turn as u64 * groups as u64)
                .collect()
        };
        lanes.iter().enumerate().map(unit).collect()
    }
}

/// The first warps.
fn named(labels: &[&str]) -> Vec<(u64, String)> {
    let labels = labels.iter().map(|label| label.to_string());
    (0..).zip(labels).collect()
}

/// Any numbers: what warps do does not depend on them.
fn operands(scene: &Scene) -> Result<Operands> {
    let shape = Shape::new(Dims {
        m: scene.m,
        n: 1,
        k: scene.k,
        l: 1,
    })?;
    // 1.0 in E4M3.
    let ones = |bytes| vec![0x38; bytes];
    let vector_scales = ones(scene.layout.bytes(1, shape.blocks()));
    Ok(Operands {
        codes: vec![0x21; shape.weight_code_bytes()],
        scales: ones(shape.weight_scale_bytes(scene.layout)),
        layout: scene.layout,
        global: GlobalScale::Multiplier(1.0),
        row_alpha: Vec::new(),
        activation: Activation::Nvfp4,
        vectors: vec![0x21; shape.row_code_bytes()],
        vector_strides: Strides::packed(1, shape.row_code_bytes()),
        vector_scale_strides: Strides {
            row: shape.blocks(),
            batch: vector_scales.len(),
        },
        vector_scales,
        vector_layout: scene.layout,
        vector_global: GlobalScale::Multiplier(1.0),
        vector_alpha: Vec::new(),
        on_read: None,
        digits: 1,
        output: FloatType::F32,
        select: Vec::new(),
        late: false,
        output_strides: None,
        bias: Vec::new(),
        residual: Vec::new(),
        in_place: false,
        shape,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each lane does so.
    fn count(lanes: &[Lane], activity: Activity) -> Vec<usize> {
        let of = |lane: &Lane| {
            let stretches = lane.stretches.iter();
            stretches
                .filter(|stretch| stretch.activity == activity)
                .count()
        };
        lanes.iter().map(of).collect()
    }

    /// The lanes of a kernel's picture, where there is a compiler.
    fn lanes_of(drawn: Drawn) -> Option<Vec<Lane>> {
        if let Some(why) = ptx::missing() {
            eprintln!("not run: {why}");
            return None;
        }
        let (scene, trace) = (drawn.scene(), drawn.trace().unwrap());
        let lanes = lanes::lanes(&trace, &scene.warps, scene.product);
        for lane in &lanes {
            let pairs = lane.stretches.windows(2);
            let mut pairs = pairs.map(|pair| (pair[0].end, pair[1].start));
            assert!(pairs.all(|(end, start)| end == start), "{lane:?}");
        }
        Some(lanes)
    }

    #[test]
    fn producers_of_the_ring_copy_and_groups_take_units_in_turn() {
        let Some(lanes) = lanes_of(Drawn::Ring) else {
            return;
        };
        let labels: Vec<&str> = lanes.iter().map(|lane| lane.label.as_str()).collect();
        assert_eq!(labels, ["producer 0", "producer 1", "group 0", "group 1"]);
        assert_eq!(count(&lanes, Activity::Multiplies), [0, 0, 5, 5]);
        assert_eq!(count(&lanes, Activity::Stores), [0, 0, 1, 1]);
        let numbers = Drawn::Ring.numbers(&lanes);
        assert_eq!(numbers[2], [0, 2, 4, 6, 8]);
        assert_eq!(numbers[3], [1, 3, 5, 7, 9]);
        // A producer waits for room, and never for what it copies.
        assert_eq!(count(&lanes[..2], Activity::WaitsForCopies), [0, 0]);
        assert!(
            count(&lanes[..2], Activity::WaitsForWarps)
                .iter()
                .all(|&n| n >= 4)
        );
        assert!(
            count(&lanes[2..], Activity::WaitsForCopies)
                .iter()
                .all(|&n| n >= 4)
        );
        // Two units of two KiB, and no more.
        for lane in &lanes[..2] {
            let most = lane.in_flight.iter().map(|level| level.1).max();
            assert_eq!(most, Some(2 * 2048));
            assert_eq!(lane.in_flight.last().map(|level| level.1), Some(0));
        }
    }

    #[test]
    fn every_warp_of_stream_copies_and_multiplies() {
        let Some(lanes) = lanes_of(Drawn::Stream) else {
            return;
        };
        assert_eq!(lanes.len(), 3);
        for activity in [
            Activity::Copies,
            Activity::Multiplies,
            Activity::WaitsForCopies,
        ] {
            let counts = count(&lanes, activity);
            assert!(
                counts.iter().all(|&n| n >= 4),
                "{activity:?}: {counts:?} of {lanes:?}"
            );
        }
        assert_eq!(count(&lanes, Activity::Stores).iter().max(), Some(&1));
    }

    #[test]
    fn the_picture_says_what_it_is() {
        if ptx::missing().is_some() {
            return;
        }
        let svg = Drawn::Ring.picture().unwrap();
        for text in [
            "viewBox=\"0 0 400 ",
            "<title>ring: ",
            "<desc>What producer 0, producer 1, group 0, group 1 do over simulated steps",
            "prefers-color-scheme:dark",
            ">waits for copies<",
            ">9</text>",
            ">Simulated steps, not time on hardware: ",
        ] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }
}
