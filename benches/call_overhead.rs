//! Host time of a call: the driver's bare launch of the same kernel, a prepared call by address, a prepared call with
//! cudarc's views, and calls that are not prepared.
//!
//! `cargo bench --bench call_overhead [-- [--json] [--check] [--shape M,K] [--batches N]]` runs it on a machine with a
//! GPU. So does the program that `cargo bench --bench call_overhead --no-run` names. `--check` fails if a prepared call
//! costs more than a microsecond over the bare launch.

use std::cell::RefCell;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use nvfp4_gemv::measure::Bare;
use nvfp4_gemv::{
    Activation, Choice, Device, GlobalScale, Gpu, Kernel, LinearOnDevice, Nvfp4Vectors, Operands,
    Options, Output, PreparedGemvOnDevice, ScaleLayout, Shape, Target, VectorScale, Vectors,
    Weights, gemv_on_device, raw, select,
};
use serde_json::{Value, json};

/// Launches between two waits for the device: fewer than its queue holds, or the host would wait.
const BATCH: usize = 256;
/// Time that a prepared call may cost over the bare launch.
const LIMIT_NS: f64 = 1000.0;
const LAYOUT: ScaleLayout = ScaleLayout::Tiled128x4;

struct Arguments {
    json: bool,
    check: bool,
    m: usize,
    k: usize,
    batches: usize,
}

fn arguments() -> Result<Arguments, Box<dyn Error>> {
    let mut found = Arguments {
        json: false,
        check: false,
        m: 1024,
        k: 4096,
        batches: 200,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--json" => found.json = true,
            "--check" => found.check = true,
            "--bench" => {} // what cargo says
            "--batches" => found.batches = value()?.parse::<usize>()?.max(1),
            "--shape" => {
                let shape = value()?;
                let (m, k) = shape.split_once(',').ok_or("--shape takes M,K")?;
                (found.m, found.k) = (m.parse()?, k.parse()?);
            }
            _ => {
                return Err(format!("{word}: see the top of benches/call_overhead.rs").into());
            }
        }
    }
    Ok(found)
}

fn main() -> ExitCode {
    let run = || -> Result<bool, Box<dyn Error>> {
        let arguments = arguments()?;
        if let Err(reason) = raw::device_count() {
            println!("call_overhead needs a GPU: {reason}");
            return Ok(true);
        }
        measure(&arguments)
    };
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Operands in device memory, and the stream of a context of their own.
struct Rig {
    stream: Arc<CudaStream>,
    shape: Shape,
    codes: CudaSlice<u8>,
    scales: CudaSlice<u8>,
    x_codes: CudaSlice<u8>,
    x_scales: CudaSlice<u8>,
    y: CudaSlice<half::f16>,
}

impl Rig {
    fn new(shape: Shape, event_tracking: bool) -> Result<Self, Box<dyn Error>> {
        let context = CudaContext::new(0)?;
        if !event_tracking {
            // SAFETY: all work of this rig goes to its one stream.
            unsafe { context.disable_event_tracking() };
        }
        let stream = context.new_stream()?;
        let bytes = |count: usize, value: u8| stream.clone_htod(&vec![value; count]);
        Ok(Self {
            codes: bytes(shape.weight_code_bytes(), 0x22)?,
            scales: bytes(shape.weight_scale_bytes(LAYOUT), 0x38)?,
            x_codes: bytes(shape.row_code_bytes(), 0x22)?,
            x_scales: bytes(LAYOUT.bytes(1, shape.blocks()), 0x38)?,
            y: stream.alloc_zeros(shape.outputs())?,
            stream,
            shape,
        })
    }

    /// The parts of a safe call.
    fn views(
        &mut self,
    ) -> nvfp4_gemv::Result<(Weights<'_, Device>, Vectors<'_, Device>, Output<'_, Device>)> {
        let weights = Weights::on_device(
            &self.shape,
            self.codes.as_view(),
            self.scales.as_view(),
            LAYOUT,
            GlobalScale::ONE,
        )?;
        let vectors = Vectors::Nvfp4(Nvfp4Vectors::new(
            self.x_codes.as_view(),
            self.x_scales.as_view(),
            LAYOUT,
            VectorScale::Shared(GlobalScale::ONE),
        ));
        Ok((weights, vectors, Output::on_device(self.y.as_view_mut())))
    }

    fn prepared(&mut self, options: &Options<'_>) -> nvfp4_gemv::Result<PreparedGemvOnDevice> {
        let (stream, shape) = (self.stream.clone(), self.shape);
        let (weights, vectors, output) = self.views()?;
        PreparedGemvOnDevice::new(&stream, &shape, &weights, &vectors, output, options)
    }

    /// The operands by address.
    fn call(&self) -> nvfp4_gemv::Result<raw::Call> {
        use cudarc::driver::DevicePtr;
        let address = |slice: &CudaSlice<u8>| slice.device_ptr(&self.stream).0;
        let strides = nvfp4_gemv::Strides { row: 0, batch: 0 };
        let weights = raw::RawWeights {
            codes: address(&self.codes),
            scales: address(&self.scales),
            layout: LAYOUT,
            global: GlobalScale::ONE,
            row_alpha: 0,
            row_alpha_batch_stride: 0,
            select: None,
        };
        let vectors = raw::RawVectors::Nvfp4 {
            codes: address(&self.x_codes),
            code_strides: strides,
            scales: address(&self.x_scales),
            layout: LAYOUT,
            scale_strides: strides,
            global: GlobalScale::ONE,
            vector_alpha: 0,
            digits: 1,
        };
        let output = raw::RawOutput::packed(
            self.y.device_ptr(&self.stream).0,
            nvfp4_gemv::FloatType::F16,
        );
        raw::Call::new(&self.shape, &weights, &vectors, &output)
    }
}

/// A way to launch, and the nanoseconds a call of each batch.
struct Way<'a> {
    name: &'static str,
    call: Box<dyn FnMut() -> Result<(), Box<dyn Error>> + 'a>,
    nanoseconds: Vec<f64>,
}

impl<'a> Way<'a> {
    fn new(name: &'static str, call: impl FnMut() -> Result<(), Box<dyn Error>> + 'a) -> Self {
        Self {
            name,
            call: Box::new(call),
            nanoseconds: Vec::new(),
        }
    }

    fn at(&self, share: f64) -> f64 {
        self.nanoseconds[(share * (self.nanoseconds.len() - 1) as f64) as usize]
    }
}

fn measure(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let shape = Shape::matrix(arguments.m, arguments.k)?;
    let gpu = raw::gpu(0)?;
    let operands = Operands::new(Activation::Nvfp4, LAYOUT);
    let mut passed = true;
    let mut results = Vec::new();
    if !arguments.json {
        println!(
            "{}, {shape}; host nanoseconds a call, {} batches of {BATCH} launches\n",
            gpu.name, arguments.batches
        );
    }
    for &kernel in Kernel::ALL {
        let options = Options::new().kernel(kernel);
        if select(&shape, &operands, Target::Gpu(&gpu), &options).is_err() {
            continue;
        }
        let (ok, result) = one_kernel(arguments, shape, &gpu, &options)?;
        passed &= ok;
        results.push(result);
    }
    if arguments.json {
        let report = json!({
            "device": gpu.name, "m": shape.m(), "k": shape.k(), "batch": BATCH,
            "batches": arguments.batches, "limit_ns": LIMIT_NS, "passed": passed, "kernels": results,
        });
        println!("{report:#}");
    }
    Ok(passed || !arguments.check)
}

fn one_kernel(
    arguments: &Arguments,
    shape: Shape,
    gpu: &Gpu,
    options: &Options<'_>,
) -> Result<(bool, Value), Box<dyn Error>> {
    let mut rig = Rig::new(shape, false)?;
    let mut tracked = Rig::new(shape, true)?;
    let stream = rig.stream.clone();
    let cu_stream = stream.cu_stream();
    let prepared = rig.prepared(options)?;
    let prepared_tracked = tracked.prepared(options)?;
    let choice = *prepared.choice();
    let configured = options.config(choice.config);
    let call = rig.call()?;

    let same = Bare::of(&stream, || {
        // SAFETY: of this, and of every launch by address below. The rig's memory outlives the work, which
        // is waited for after every batch; its context is current, the only one of device 0.
        unsafe { prepared.raw().run(cu_stream.cast()) }
    })?;
    let (codes, scales) = (rig.codes.clone(), rig.scales.clone());
    let layer = LinearOnDevice::new(
        shape.m(),
        shape.k(),
        codes,
        scales,
        LAYOUT,
        GlobalScale::ONE,
    )?;
    let layer_x = (rig.x_codes.clone(), rig.x_scales.clone());
    let mut layer_y = rig.y.clone();
    let rig = RefCell::new(rig); // two ways use it
    let tracked_stream = tracked.stream.clone();
    let vectors = Nvfp4Vectors::new(
        layer_x.0.as_view(),
        layer_x.1.as_view(),
        LAYOUT,
        VectorScale::Shared(GlobalScale::ONE),
    );
    let vectors = Vectors::Nvfp4(vectors);
    let mut ways = Vec::new();
    match Bare::empty(&stream) {
        Ok(empty) => ways.push(Way::new("bare launch, empty kernel", move || {
            // SAFETY: above.
            Ok(unsafe { empty.launch(cu_stream) }?)
        })),
        Err(error) => eprintln!("no empty kernel: {error}"),
    }
    ways.push(Way::new("bare launch, same kernel", move || {
        // SAFETY: above.
        Ok(unsafe { same.launch(cu_stream) }?)
    }));
    ways.push(Way::new("prepared, by address", || {
        // SAFETY: above.
        Ok(unsafe { prepared.raw().run(cu_stream.cast()) }?)
    }));
    let raw_call = Way::new("not prepared, by address", move || {
        // SAFETY: above.
        unsafe { raw::gemv(&call, gpu, &configured, cu_stream.cast()) }?;
        Ok(())
    });
    ways.push(Way::new("prepared, views", || {
        let mut rig = rig.borrow_mut();
        let (weights, vectors, output) = rig.views()?;
        Ok(prepared.run(&stream, &weights, &vectors, output)?)
    }));
    ways.push(raw_call);
    ways.push(Way::new("not prepared, views", || {
        let mut rig = rig.borrow_mut();
        let (weights, vectors, output) = rig.views()?;
        gemv_on_device(&stream, &shape, &weights, &vectors, output, options)?;
        Ok(())
    }));
    let mut forward = || {
        let output = Output::on_device(layer_y.as_view_mut());
        layer.forward(&stream, &vectors, 1, output)
    };
    // A layer takes what the library picks: it is compared where that is this kernel.
    if forward()?.config == choice.config {
        ways.push(Way::new("a layer's forward", move || {
            forward()?;
            Ok(())
        }));
    }
    ways.push(Way::new("prepared, views, events tracked", || {
        let (weights, vectors, output) = tracked.views()?;
        Ok(prepared_tracked.run(&tracked_stream, &weights, &vectors, output)?)
    }));

    // The first two rounds warm up. The ways take turns, so that other work of the machine meets all alike.
    for round in 0..arguments.batches + 2 {
        for way in &mut ways {
            let start = Instant::now();
            for _ in 0..BATCH {
                (way.call)()?;
            }
            let seconds = start.elapsed().as_secs_f64();
            stream.context().synchronize()?;
            if round >= 2 {
                way.nanoseconds.push(seconds * 1e9 / BATCH as f64);
            }
        }
    }
    for way in &mut ways {
        way.nanoseconds.sort_by(f64::total_cmp);
    }
    Ok(report(arguments, &choice, &ways))
}

fn report(arguments: &Arguments, choice: &Choice, ways: &[Way<'_>]) -> (bool, Value) {
    let median = |name: &str| {
        let way = ways.iter().find(|way| way.name == name);
        way.map_or(f64::NAN, |way| way.at(0.5))
    };
    let bare = median("bare launch, same kernel");
    let over = median("prepared, by address") - bare;
    let over_views = median("prepared, views") - bare;
    let passed = over <= LIMIT_NS && over_views <= LIMIT_NS;
    if !arguments.json {
        println!("{:?}", choice.config);
        println!(
            "{:<34} {:>8} {:>8} {:>8} {:>10}",
            "", "median", "10%", "90%", "over bare"
        );
        for way in ways {
            println!(
                "{:<34} {:>8.0} {:>8.0} {:>8.0} {:>+10.0}",
                way.name,
                way.at(0.5),
                way.at(0.1),
                way.at(0.9),
                way.at(0.5) - bare
            );
        }
        println!(
            "prepared - bare: {over:+.0} ns by address, {over_views:+.0} ns with views: {} {LIMIT_NS} ns\n",
            if passed { "within" } else { "MORE THAN" }
        );
    }
    let rows: Vec<Value> = ways
        .iter()
        .map(|way| {
            json!({
                "name": way.name, "median_ns": way.at(0.5), "p10_ns": way.at(0.1),
                "p90_ns": way.at(0.9),
            })
        })
        .collect();
    let result = json!({
        "path": choice.path.name(), "kernel": choice.kernel().map(Kernel::name),
        "config": format!("{:?}", choice.config), "calls": rows,
        "prepared_over_bare_ns": over, "prepared_views_over_bare_ns": over_views,
    });
    (passed, result)
}
