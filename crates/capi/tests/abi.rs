//! The functions as C calls them: results of the library's bits, and errors for whatever means nothing.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

use nvfp4_gemv::checkpoint::Checkpoint;
use nvfp4_gemv::half::{bf16, f16};
use nvfp4_gemv::{Experts, Gate, Linear, Mlp, Output, RowOrder, Vectors};
use nvfp4_gemv_capi::*;

fn last() -> String {
    // SAFETY: the text ends with a zero, and is copied before another call.
    let text = unsafe { CStr::from_ptr(nvfp4_last_error()) };
    text.to_str().unwrap().to_owned()
}

#[track_caller]
fn refused(status: nvfp4_status, expected: nvfp4_status, says: &str) {
    assert_eq!(status, expected, "{}", last());
    assert!(last().contains(says), "{:?} is not in {:?}", says, last());
}

const M: usize = 24;
const K: usize = 96;

fn dense() -> Vec<f32> {
    (0..M * K).map(|i| (i as f32 * 0.7).sin()).collect()
}

fn bytes_of<T>(values: &[T]) -> (*const c_void, usize) {
    (values.as_ptr().cast(), size_of_val(values))
}

fn of_dense() -> *mut nvfp4_linear {
    let (dense, mut linear) = (dense(), null_mut());
    let (values, bytes) = bytes_of(&dense);
    // SAFETY: the memory is there.
    let status = unsafe { nvfp4_linear_from_dense(NVFP4_F32, values, bytes, M, K, &mut linear) };
    assert_eq!(status, NVFP4_OK, "{}", last());
    linear
}

fn x_of<T>(element: u32, values: &[T]) -> nvfp4_vectors {
    let (values, values_bytes) = bytes_of(values);
    nvfp4_vectors {
        element,
        values,
        values_bytes,
        scales: null(),
        scales_bytes: 0,
        layout: 99, // not looked at
        global_kind: 99,
        global: f32::NAN,
    }
}

fn y_of<T>(element: u32, values: &mut [T]) -> nvfp4_output {
    nvfp4_output {
        element,
        accumulate: 0,
        values_bytes: size_of_val(values),
        values: values.as_mut_ptr().cast(),
    }
}

#[test]
fn versions() {
    assert_eq!(nvfp4_abi_version(), NVFP4_ABI_VERSION);
    // SAFETY: static text.
    let version = unsafe { CStr::from_ptr(nvfp4_version()) };
    assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_layer_gives_the_bits_of_rust() {
    let linear = of_dense();
    let rust = Linear::from_dense(&dense(), M, K).unwrap();
    for n in [0, 1, 7] {
        let x: Vec<f32> = (0..n * K).map(|i| (i as f32).cos()).collect();
        let (mut y, mut expected) = (vec![1.0f32; n * M], vec![1.0f32; n * M]);
        let mut output = y_of(NVFP4_F32, &mut y);
        for accumulate in [0, 1] {
            output.accumulate = accumulate;
            // SAFETY: all is there.
            unsafe {
                assert_eq!(nvfp4_linear_prepare(linear, n, NVFP4_F32), NVFP4_OK);
                let status = nvfp4_linear_forward(linear, &x_of(NVFP4_F32, &x), n, &output);
                assert_eq!(status, NVFP4_OK, "{}", last());
            }
            let of = Output::of(&mut expected);
            let of = if accumulate == 0 {
                of
            } else {
                of.accumulating()
            };
            rust.forward(&Vectors::of(&x), n, of).unwrap();
            assert_eq!(y, expected);
        }
        let halves: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
        let (mut y, mut expected) = (vec![bf16::ZERO; n * M], vec![bf16::ZERO; n * M]);
        let output = y_of(NVFP4_BF16, &mut y);
        // SAFETY: all is there.
        let status = unsafe { nvfp4_linear_forward(linear, &x_of(NVFP4_F16, &halves), n, &output) };
        assert_eq!(status, NVFP4_OK, "{}", last());
        rust.forward(&Vectors::of(&halves), n, Output::of(&mut expected))
            .unwrap();
        assert_eq!(y, expected);
    }
    // SAFETY: nobody uses it any more.
    unsafe { nvfp4_linear_free(linear) };
}

fn parts_of(linear: *const nvfp4_linear) -> nvfp4_weights {
    let mut parts = std::mem::MaybeUninit::uninit();
    // SAFETY: there is room, and it is written whatever happens.
    unsafe {
        assert_eq!(
            nvfp4_linear_weights(linear, parts.as_mut_ptr()),
            NVFP4_OK,
            "{}",
            last()
        );
        parts.assume_init()
    }
}

/// NVFP4 vectors, and a layer that was made of another one's parts, with factors and a bias.
#[test]
fn parts_come_out_as_they_went_in() {
    let linear = of_dense();
    let mut parts = parts_of(linear);
    let (alpha, bias) = (vec![2.0f32; M], vec![0.5f32; M]);
    (parts.row_alpha, parts.bias) = (alpha.as_ptr(), bias.as_ptr());
    let codes = [0x31u8; 2 * K / 2];
    let scales = [0x38u8; 2 * K / 16];
    let x = nvfp4_vectors {
        scales: scales.as_ptr(),
        scales_bytes: scales.len(),
        layout: NVFP4_LINEAR,
        global_kind: NVFP4_DIVISOR,
        global: 2.0,
        ..x_of(NVFP4_CODES, &codes)
    };
    let run = |linear: *const nvfp4_linear| {
        let mut y = vec![0.0f32; 2 * M];
        let output = y_of(NVFP4_F32, &mut y);
        // SAFETY: all is there.
        let status = unsafe { nvfp4_linear_forward(linear, &x, 2, &output) };
        assert_eq!(status, NVFP4_OK, "{}", last());
        y
    };
    let plain = run(linear);
    for make in [nvfp4_linear_from_parts, nvfp4_linear_borrowing_parts] {
        let mut other = null_mut();
        // SAFETY: the parts are of `linear`, which is there longer.
        assert_eq!(unsafe { make(&parts, &mut other) }, NVFP4_OK, "{}", last());
        let there = parts_of(other);
        assert_eq!((there.rows, there.k, there.layout), (M, K, NVFP4_LINEAR));
        assert_eq!(there.global.to_bits(), parts.global.to_bits());
        let borrowed = std::ptr::fn_addr_eq(make, nvfp4_linear_borrowing_parts as fn_of_parts);
        assert_eq!(there.codes == parts.codes, borrowed);
        for (y, plain) in run(other).iter().zip(&plain) {
            assert!((y - (2.0 * plain + 0.5)).abs() < 1e-5);
        }
        // SAFETY: nobody uses it any more.
        unsafe { nvfp4_linear_free(other) };
    }
    // SAFETY: as above.
    unsafe { nvfp4_linear_free(linear) };
}

#[allow(non_camel_case_types)]
type fn_of_parts =
    unsafe extern "C" fn(*const nvfp4_weights, *mut *mut nvfp4_linear) -> nvfp4_status;

#[test]
fn nulls_sizes_and_numbers_are_errors() {
    let linear = of_dense();
    let (x, mut y) = (vec![1.0f32; 2 * K], vec![7.0f32; 2 * M]);
    let (good_x, good_y) = (x_of(NVFP4_F32, &x), y_of(NVFP4_F32, &mut y));
    let run = |linear: *const nvfp4_linear, x: &nvfp4_vectors, n, y: &nvfp4_output| {
        // SAFETY: whatever is not null is there.
        unsafe { nvfp4_linear_forward(linear, x, n, y) }
    };
    refused(
        run(null(), &good_x, 2, &good_y),
        NVFP4_BAD_ARGUMENT,
        "linear is NULL",
    );
    // SAFETY: as above.
    unsafe {
        let status = nvfp4_linear_forward(linear, null(), 2, &good_y);
        refused(status, NVFP4_BAD_ARGUMENT, "x is NULL");
        let status = nvfp4_linear_forward(linear, &good_x, 2, null());
        refused(status, NVFP4_BAD_ARGUMENT, "y is NULL");
    }
    let bad = |change: &dyn Fn(&mut nvfp4_vectors, &mut nvfp4_output)| {
        let (mut x, mut y) = (good_x, good_y);
        change(&mut x, &mut y);
        run(linear, &x, 2, &y)
    };
    let argument = NVFP4_BAD_ARGUMENT;
    refused(
        bad(&|x, _| x.element = 77),
        argument,
        "77 is no element type",
    );
    refused(
        bad(&|_, y| y.element = NVFP4_CODES),
        argument,
        "3 is no element type",
    );
    refused(bad(&|x, _| x.values = null()), argument, "x.values is NULL");
    refused(
        bad(&|_, y| y.values = null_mut()),
        argument,
        "y.values is NULL",
    );
    refused(
        bad(&|x, _| x.values = x.values.wrapping_byte_add(1)),
        argument,
        "aligned",
    );
    refused(bad(&|x, _| x.values_bytes -= 1), argument, "x.values");
    refused(
        bad(&|x, _| x.values_bytes = usize::MAX - 3),
        argument,
        "x.values",
    );
    refused(
        bad(&|x, _| x.values_bytes -= 4),
        NVFP4_BAD_OPERAND,
        "too short",
    );
    refused(
        bad(&|_, y| y.values_bytes -= 4),
        NVFP4_BAD_OPERAND,
        "output",
    );
    refused(
        bad(&|x, y| x.values = y.values),
        argument,
        "y.values and x.values overlap",
    );
    refused(
        bad(&|x, _| x.element = NVFP4_CODES),
        argument,
        "99 is no layout",
    );
    refused(
        run(linear, &good_x, usize::MAX, &good_y),
        NVFP4_BAD_OPERAND,
        "overflow",
    );
    assert_eq!(y, [7.0; 2 * M], "nothing was written");
    // SAFETY: whatever is not null is there.
    unsafe {
        refused(
            nvfp4_linear_prepare(null(), 1, NVFP4_F32),
            argument,
            "linear is NULL",
        );
        refused(
            nvfp4_linear_prepare(linear, 1, 4),
            argument,
            "4 is no type of vectors",
        );
        // As many vectors as there can be: more memory than a machine has, unless it promises what it has not.
        let status = nvfp4_linear_prepare(linear, nvfp4_gemv::Shape::MAX_DIM, NVFP4_F32);
        if status != NVFP4_OK {
            refused(status, NVFP4_UNAVAILABLE, "no memory");
        }
        let status = nvfp4_linear_weights(linear, null_mut());
        refused(status, argument, "the place for the result is NULL");
    }

    let good = parts_of(linear);
    let made = |change: &dyn Fn(&mut nvfp4_weights)| {
        let (mut parts, mut other) = (good, std::ptr::dangling_mut());
        change(&mut parts);
        // SAFETY: whatever is not null is there.
        let status = unsafe { nvfp4_linear_from_parts(&parts, &mut other) };
        assert!(other.is_null(), "no handle on an error");
        status
    };
    refused(
        made(&|w| w.codes = null()),
        argument,
        "weights.codes is NULL",
    );
    refused(
        made(&|w| w.scales_bytes -= 1),
        NVFP4_BAD_OPERAND,
        "too short",
    );
    refused(made(&|w| w.k -= 1), NVFP4_BAD_OPERAND, "multiple of 16");
    refused(made(&|w| w.layout = 2), argument, "2 is no layout");
    refused(
        made(&|w| w.global_kind = 2),
        argument,
        "2 is no kind of global scale",
    );
    refused(
        made(&|w| w.global = 0.0),
        NVFP4_BAD_OPERAND,
        "not usable as a scale",
    );
    refused(
        made(&|w| w.rows = usize::MAX),
        NVFP4_BAD_OPERAND,
        "overflow",
    );
    refused(
        made(&|w| w.bias = std::ptr::dangling::<f32>().wrapping_byte_add(1)),
        argument,
        "aligned",
    );
    let (dense, mut other) = (dense(), null_mut());
    let (values, bytes) = bytes_of(&dense);
    // SAFETY: whatever is not null is there.
    unsafe {
        let status = nvfp4_linear_from_parts(null(), &mut other);
        refused(status, argument, "weights is NULL");
        let status = nvfp4_linear_from_dense(NVFP4_F32, values, bytes - 4, M, K, &mut other);
        refused(status, NVFP4_BAD_OPERAND, "too short");
        let status = nvfp4_linear_from_dense(NVFP4_CODES, values, bytes, M, K, &mut other);
        refused(status, argument, "no element type");
        nvfp4_linear_free(linear);
        // Nothing is freed.
        nvfp4_linear_free(null_mut());
        nvfp4_checkpoint_close(null_mut());
        nvfp4_gpu_free(null_mut());
        nvfp4_call_free(null_mut());
        nvfp4_text_free(null_mut());
    }
}

#[test]
fn checkpoints() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let file = data.join("minilm-l0-modelopt.safetensors");
    let path = CString::new(file.to_str().unwrap()).unwrap();
    let (mut checkpoint, mut count, mut name) = (null_mut(), 0, null::<c_char>());
    let rust = Checkpoint::open(&file).unwrap();
    // SAFETY: whatever is not null is there.
    unsafe {
        assert_eq!(
            nvfp4_checkpoint_open(path.as_ptr(), &mut checkpoint),
            NVFP4_OK,
            "{}",
            last()
        );
        assert_eq!(nvfp4_checkpoint_count(checkpoint, &mut count), NVFP4_OK);
        assert_eq!(count, rust.layers().len());
        let mut linears = Vec::new();
        for (number, expected) in rust.layers().enumerate() {
            assert_eq!(
                nvfp4_checkpoint_name(checkpoint, number, &mut name),
                NVFP4_OK
            );
            assert_eq!(CStr::from_ptr(name).to_str(), Ok(expected));
            let mut linear = null_mut();
            let status = nvfp4_linear_from_checkpoint(checkpoint, name, &mut linear);
            assert_eq!(status, NVFP4_OK, "{}", last());
            linears.push((linear, expected));
        }
        let status = nvfp4_checkpoint_name(checkpoint, count, &mut name);
        refused(status, NVFP4_BAD_ARGUMENT, "there is no layer");
        assert!(name.is_null());
        let mut linear = null_mut();
        let status = nvfp4_linear_from_checkpoint(checkpoint, c"no.layer".as_ptr(), &mut linear);
        refused(status, NVFP4_BAD_FILE, "no.layer");
        let no_text = c"\xff".as_ptr();
        let status = nvfp4_linear_from_checkpoint(checkpoint, no_text, &mut linear);
        refused(status, NVFP4_BAD_ARGUMENT, "no UTF-8");
        let mut experts = null_mut();
        let mut of = |name: *const c_char, up, order| {
            let (gate, down) = (c"gate".as_ptr(), c"down".as_ptr());
            nvfp4_experts_from_checkpoint(checkpoint, name, gate, up, order, down, &mut experts)
        };
        refused(
            of(c"no.experts".as_ptr(), null(), NVFP4_STACKED),
            NVFP4_BAD_FILE,
            "no.experts",
        );
        refused(
            of(c"no.experts".as_ptr(), null(), 2),
            NVFP4_BAD_ARGUMENT,
            "no order",
        );
        // Not looked at where gate and up are two layers.
        refused(
            of(c"no.experts".as_ptr(), c"up".as_ptr(), 2),
            NVFP4_BAD_FILE,
            "no.experts",
        );
        refused(
            of(null(), null(), NVFP4_STACKED),
            NVFP4_BAD_ARGUMENT,
            "name is NULL",
        );
        nvfp4_checkpoint_close(checkpoint);
        // The layers stay.
        for (linear, name) in linears {
            let parts = parts_of(linear);
            let codes = std::slice::from_raw_parts(parts.codes, parts.codes_bytes);
            assert!(codes == rust.layer(name).unwrap().codes());
            nvfp4_linear_free(linear);
        }
        let status = nvfp4_checkpoint_open(c"/no/such/file".as_ptr(), &mut checkpoint);
        refused(status, NVFP4_BAD_FILE, "/no/such/file");
        refused(
            nvfp4_checkpoint_open(null(), &mut checkpoint),
            NVFP4_BAD_ARGUMENT,
            "path is NULL",
        );
        let status = nvfp4_checkpoint_open(path.as_ptr(), null_mut());
        refused(
            status,
            NVFP4_BAD_ARGUMENT,
            "the place for the result is NULL",
        );
        refused(
            nvfp4_checkpoint_count(null(), &mut count),
            NVFP4_BAD_ARGUMENT,
            "checkpoint is NULL",
        );
    }
}

/// A thread has its own last error, and any thread may use a handle.
#[test]
fn threads() {
    let linear = of_dense();
    // SAFETY: whatever is not null is there.
    refused(
        unsafe { nvfp4_linear_prepare(null(), 1, 0) },
        NVFP4_BAD_ARGUMENT,
        "linear is NULL",
    );
    let address = linear.expose_provenance();
    let x = vec![1.0f32; K];
    let run = |linear: *const nvfp4_linear| {
        let mut y = vec![0.0f32; M];
        let output = y_of(NVFP4_F32, &mut y);
        // SAFETY: all is there.
        let status = unsafe { nvfp4_linear_forward(linear, &x_of(NVFP4_F32, &x), 1, &output) };
        assert_eq!(status, NVFP4_OK);
        y
    };
    let expected = run(linear);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                assert_eq!(last(), "");
                let linear = std::ptr::with_exposed_provenance(address);
                for _ in 0..20 {
                    assert_eq!(run(linear), expected);
                }
                // SAFETY: whatever is not null is there.
                let status = unsafe { nvfp4_linear_prepare(linear, 1, 50) };
                refused(status, NVFP4_BAD_ARGUMENT, "50 is no type of vectors");
            });
        }
    });
    assert!(last().contains("linear is NULL"));
    // SAFETY: nobody uses it any more.
    unsafe { nvfp4_linear_free(linear) };
}

#[test]
fn plans() {
    let problem = nvfp4_problem {
        rows: 4096,
        k: 4096,
        n: 1,
        element: NVFP4_BF16,
        layout: NVFP4_LINEAR,
        chained: 0,
    };
    let plan = |gpu, problem: &nvfp4_problem, format| {
        let mut text = null_mut();
        // SAFETY: whatever is not null is there; the text is freed once.
        unsafe {
            match nvfp4_plan(gpu, problem, format, &mut text) {
                NVFP4_OK => {
                    let copy = CStr::from_ptr(text).to_str().unwrap().to_owned();
                    nvfp4_text_free(text);
                    Ok(copy)
                }
                status => {
                    assert!(text.is_null());
                    Err(status)
                }
            }
        }
    };
    assert_eq!(
        plan(null(), &problem, NVFP4_TEXT).unwrap(),
        "cpu: the operands are in host memory"
    );
    let mut gpu = null_mut();
    // SAFETY: whatever is not null is there.
    unsafe {
        assert_eq!(
            nvfp4_gpu_of_product(c"h200".as_ptr(), &mut gpu),
            NVFP4_OK,
            "{}",
            last()
        );
        let text = plan(gpu, &problem, NVFP4_TEXT).unwrap();
        assert!(
            text.starts_with("cuda-core, kernel ") && text.contains("CTAs of"),
            "{text}"
        );
        let json = plan(gpu, &problem, NVFP4_JSON).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["path"], "cuda-core");
        assert!(!json["launches"].as_array().unwrap().is_empty());
        assert_eq!(plan(gpu, &problem, 2), Err(NVFP4_BAD_ARGUMENT));
        let odd = nvfp4_problem { k: 100, ..problem };
        assert_eq!(plan(gpu, &odd, NVFP4_TEXT), Err(NVFP4_BAD_OPERAND));
        let mut bytes = 1;
        let many = nvfp4_problem { n: 64, ..problem };
        assert_eq!(
            nvfp4_workspace_bytes(gpu, &many, &mut bytes),
            NVFP4_OK,
            "{}",
            last()
        );
        assert!(bytes > 1);
        let status = nvfp4_workspace_bytes(null(), &many, &mut bytes);
        refused(status, NVFP4_BAD_ARGUMENT, "gpu is NULL");
        nvfp4_gpu_free(gpu);
        let status = nvfp4_gpu_of_product(c"voodoo".as_ptr(), &mut gpu);
        refused(status, NVFP4_BAD_ARGUMENT, "known are");
        let status = nvfp4_plan(null(), null(), NVFP4_TEXT, &mut null_mut());
        refused(status, NVFP4_BAD_ARGUMENT, "problem is NULL");
    }
}

/// Where there is neither a GPU nor a build for one, a status says so; addresses are checked before that.
#[test]
fn devices() {
    let mut gpu = null_mut();
    // SAFETY: whatever is not null is there; nothing is launched.
    unsafe {
        match nvfp4_gpu_of_device(0, &mut gpu) {
            NVFP4_OK => nvfp4_gpu_free(gpu),
            status => {
                assert_eq!(status, NVFP4_UNAVAILABLE, "{}", last());
                assert!(gpu.is_null() && !last().is_empty());
            }
        }
        refused(
            nvfp4_call_launch(null(), null_mut()),
            NVFP4_BAD_ARGUMENT,
            "call is NULL",
        );
        let status = nvfp4_quantize(null(), null_mut());
        refused(status, NVFP4_BAD_ARGUMENT, "vectors is NULL");
        let mut text = null_mut();
        let status = nvfp4_call_plan(null(), NVFP4_TEXT, &mut text);
        refused(status, NVFP4_BAD_ARGUMENT, "call is NULL");
        let mut call = std::ptr::dangling_mut();
        let nothing = (null(), null(), null(), null(), null());
        let (gpu, w, x, y, workspace) = nothing;
        let status = nvfp4_call_prepare(gpu, w, x, 1, y, workspace, 0, &mut call);
        let expected = match cfg!(feature = "device") {
            true => NVFP4_BAD_ARGUMENT,
            false => NVFP4_UNAVAILABLE,
        };
        assert_eq!(status, expected, "{}", last());
        assert!(call.is_null());
    }
}

#[cfg(feature = "device")]
#[test]
fn operands_by_address_are_checked() {
    let (mut gpu, mut call) = (null_mut(), null_mut());
    let weights = nvfp4_device_weights {
        rows: 64,
        k: 256,
        codes: 1 << 40,
        scales: 1 << 41,
        layout: NVFP4_LINEAR,
        global_kind: NVFP4_MULTIPLIER,
        global: 1.0,
        row_alpha: 0,
    };
    let x = nvfp4_device_vectors {
        element: NVFP4_BF16,
        values: 1 << 42,
        row_stride: 0,
        scales: 0,
        scale_row_stride: 0,
        layout: 99,
        global_kind: 99,
        global: 0.0,
        vector_alpha: 0,
    };
    let y = nvfp4_device_output {
        element: NVFP4_F32,
        values: 1 << 43,
        row_stride: 0,
        bias: 0,
        residual: 0,
    };
    // SAFETY: whatever is not null is there; nothing is launched.
    unsafe {
        assert_eq!(nvfp4_gpu_of_product(c"h200".as_ptr(), &mut gpu), NVFP4_OK);
        let mut prepare = |w: &nvfp4_device_weights, x: &nvfp4_device_vectors, n, y| {
            nvfp4_call_prepare(gpu, w, x, n, y, null(), 0, &mut call)
        };
        let null_codes = nvfp4_device_weights {
            codes: 0,
            ..weights
        };
        refused(
            prepare(&null_codes, &x, 1, &y),
            NVFP4_BAD_ARGUMENT,
            "weight codes: null",
        );
        let odd = nvfp4_device_vectors {
            values: (1 << 42) + 8,
            ..x
        };
        // Addresses and strides of a device as the host's: the same words in the header, and the same status.
        refused(
            prepare(&weights, &odd, 1, &y),
            NVFP4_BAD_ARGUMENT,
            "vectors",
        );
        let step = nvfp4_device_vectors {
            row_stride: 520,
            ..x
        };
        refused(
            prepare(&weights, &step, 2, &y),
            NVFP4_BAD_ARGUMENT,
            "0x208 is not a multiple of 16",
        );
        let near = nvfp4_device_vectors {
            row_stride: 16,
            ..x
        };
        refused(prepare(&weights, &near, 2, &y), NVFP4_BAD_OPERAND, "stride");
        let far = nvfp4_device_vectors {
            row_stride: usize::MAX,
            ..x
        };
        refused(prepare(&weights, &far, 2, &y), NVFP4_BAD_ARGUMENT, "stride");
        let on_weights = nvfp4_device_output {
            values: 1 << 40,
            ..y
        };
        refused(
            prepare(&weights, &x, 1, &on_weights),
            NVFP4_BAD_ARGUMENT,
            "overlaps",
        );
        // No kernels are linked here, or no driver is there.
        let status = prepare(&weights, &x, 2, &y);
        assert_ne!(status, NVFP4_PANIC, "{}", last());
        nvfp4_call_free(call);
        nvfp4_gpu_free(gpu);
    }
}

/// MLPs and experts give the bits of Rust's, also when what they were made of is freed.
#[test]
fn experts_of_layers() {
    fn layer(rows: usize, k: usize, seed: usize) -> *mut nvfp4_linear {
        let (dense, mut linear) = (numbers(rows * k, seed), null_mut());
        let (values, bytes) = bytes_of(&dense);
        // SAFETY: the memory is there.
        let status =
            unsafe { nvfp4_linear_from_dense(NVFP4_F32, values, bytes, rows, k, &mut linear) };
        assert_eq!(status, NVFP4_OK, "{}", last());
        linear
    }
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i + 31 * seed) as f32 * 0.7).sin())
            .collect()
    }
    let rust = |rows, k, seed| Linear::from_dense(&numbers(rows * k, seed), rows, k).unwrap();
    let (mut mlps, mut experts, mut rusts) = ([null_mut(); 2], null_mut(), Vec::new());
    for (e, mlp) in mlps.iter_mut().enumerate() {
        // The second has gate and up in one layer.
        let layers = [
            layer(32, K, e),
            layer(32, K, 9),
            layer(64, K, 5),
            layer(M, 32, 7),
        ];
        let [gate, up, both, down] = layers;
        // SAFETY: layers that are there, and freed once.
        unsafe {
            let status = match e {
                0 => nvfp4_mlp_new(gate, up, down, mlp),
                _ => nvfp4_mlp_joined(both, NVFP4_INTERLEAVED, down, mlp),
            };
            assert_eq!(status, NVFP4_OK, "{}", last());
            refused(
                nvfp4_mlp_joined(both, 2, down, &mut null_mut()),
                NVFP4_BAD_ARGUMENT,
                "no order",
            );
            let status = nvfp4_mlp_new(gate, both, down, &mut null_mut());
            refused(status, NVFP4_BAD_OPERAND, "up's M is 64");
            layers
                .into_iter()
                .for_each(|layer| nvfp4_linear_free(layer));
        }
        let down = rust(M, 32, 7);
        rusts.push(match e {
            0 => Mlp::new(rust(32, K, e), rust(32, K, 9), down).unwrap(),
            _ => Mlp::joined(rust(64, K, 5), RowOrder::Interleaved, down).unwrap(),
        });
    }
    let (x, n) = (numbers(3 * K, 1), 3);
    for (mlp, rust) in mlps.iter().zip(&rusts) {
        let (mut y, mut expected) = ([f32::NAN; 3 * M], [f32::NAN; 3 * M]);
        // SAFETY: all is there.
        let status =
            unsafe { nvfp4_mlp_forward(*mlp, &x_of(NVFP4_F32, &x), n, &y_of(NVFP4_F32, &mut y)) };
        assert_eq!(status, NVFP4_OK, "{}", last());
        rust.forward(&Vectors::of(&x), n, Output::of(&mut expected))
            .unwrap();
        assert_eq!(y, expected);
    }
    // SAFETY: MLPs that are there, and freed once.
    unsafe {
        let constant = mlps.map(<*mut nvfp4_mlp>::cast_const);
        assert_eq!(
            nvfp4_experts_new(constant.as_ptr(), 2, &mut experts),
            NVFP4_OK,
            "{}",
            last()
        );
        refused(
            nvfp4_experts_new(null(), 2, &mut null_mut()),
            NVFP4_BAD_ARGUMENT,
            "mlps",
        );
        refused(
            nvfp4_experts_new(constant.as_ptr().wrapping_byte_add(1), 1, &mut null_mut()),
            NVFP4_BAD_ARGUMENT,
            "mlps is misaligned",
        );
        refused(
            nvfp4_experts_new([null()].as_ptr(), 1, &mut null_mut()),
            NVFP4_BAD_ARGUMENT,
            "an MLP",
        );
        refused(
            nvfp4_experts_new(null(), 0, &mut null_mut()),
            NVFP4_BAD_OPERAND,
            "number of experts",
        );
        mlps.into_iter().for_each(|mlp| nvfp4_mlp_free(mlp));
    }
    let rust = Experts::new(rusts).unwrap();
    let (ids, weights) = ([0, 1, 1, -1, 1, 1], numbers(6, 3));
    let (mut y, mut expected) = ([f32::NAN; 3 * M], [f32::NAN; 3 * M]);
    rust.forward(
        &Vectors::of(&x),
        n,
        &ids,
        &weights,
        Output::of(&mut expected),
    )
    .unwrap();
    let (x, output) = (x_of(NVFP4_F32, &x), y_of(NVFP4_F32, &mut y));
    // SAFETY: all is there; what is refused is not read.
    unsafe {
        let call = |ids: *const i32, weights: *const f32, choices| {
            nvfp4_experts_forward(experts, &x, n, ids, weights, choices, &output)
        };
        assert_eq!(
            call(ids.as_ptr(), weights.as_ptr(), 2),
            NVFP4_OK,
            "{}",
            last()
        );
        assert_eq!(y, expected);
        refused(call(null(), weights.as_ptr(), 2), NVFP4_BAD_ARGUMENT, "ids");
        refused(call(ids.as_ptr(), null(), 2), NVFP4_BAD_ARGUMENT, "weights");
        refused(
            call(ids.as_ptr(), y.as_ptr(), 2),
            NVFP4_BAD_ARGUMENT,
            "y.values and weights overlap",
        );
        refused(
            call(ids.as_ptr(), weights.as_ptr(), usize::MAX),
            NVFP4_BAD_ARGUMENT,
            "choices",
        );
        refused(
            call([0, 1, 2].as_ptr(), weights.as_ptr(), 1),
            NVFP4_BAD_OPERAND,
            "slot 0 of vector 2 has expert 2",
        );
        nvfp4_experts_free(experts);
        nvfp4_experts_free(null_mut());
    }
}

/// gpt-oss with SiLU would be another model.
#[test]
fn gates() {
    let layer = |rows: usize, k: usize, seed: f32| {
        let dense: Vec<f32> = (0..rows * k).map(|i| (i as f32 * seed).sin()).collect();
        Linear::from_dense(&dense, rows, k).unwrap()
    };
    let rust = Mlp::joined(layer(64, K, 0.7), RowOrder::Stacked, layer(M, 32, 0.3)).unwrap();
    let handle = |layer: &Linear| {
        let (weights, mut linear) = (layer.weights(), null_mut());
        let parts = nvfp4_weights {
            rows: layer.rows(),
            k: layer.k(),
            codes: weights.codes().as_ptr(),
            codes_bytes: weights.codes().len(),
            scales: weights.scales().as_ptr(),
            scales_bytes: weights.scales().len(),
            layout: NVFP4_LINEAR,
            global_kind: NVFP4_MULTIPLIER,
            global: weights.global().multiplier() as f32,
            row_alpha: null(),
            bias: null(),
        };
        // SAFETY: all is there.
        let status = unsafe { nvfp4_linear_from_parts(&parts, &mut linear) };
        assert_eq!(status, NVFP4_OK, "{}", last());
        linear
    };
    let x: Vec<f32> = (0..K).map(|i| (i as f32).cos()).collect();
    let [gate_up, down] = [0, 1].map(|at| handle(rust.layers().nth(at).unwrap()));
    // SAFETY: all is there, and freed once.
    unsafe {
        let (mut plain, mut experts) = (null_mut(), null_mut());
        let status = nvfp4_mlp_joined(gate_up, NVFP4_STACKED, down, &mut plain);
        assert_eq!(status, NVFP4_OK, "{}", last());
        assert_eq!(
            nvfp4_experts_new([plain.cast_const()].as_ptr(), 1, &mut experts),
            NVFP4_OK
        );
        let mut all = Vec::new();
        for (kind, gate) in [
            (NVFP4_SILU, Gate::Silu),
            (NVFP4_GELU_TANH, Gate::GeluTanh),
            (NVFP4_CLAMPED, Gate::GPT_OSS),
        ] {
            let (mut mlp, mut others) = (null_mut(), null_mut());
            let status = nvfp4_mlp_with_gate(plain, kind, 1.702, 7.0, &mut mlp);
            assert_eq!(status, NVFP4_OK, "{}", last());
            let status = nvfp4_experts_with_gate(experts, kind, 1.702, 7.0, &mut others);
            assert_eq!(status, NVFP4_OK, "{}", last());
            let (mut y, mut of_experts) = (vec![f32::NAN; M], vec![f32::NAN; M]);
            let vectors = x_of(NVFP4_F32, &x);
            let (ids, weights) = ([0], [1.0]);
            let status = nvfp4_mlp_forward(mlp, &vectors, 1, &y_of(NVFP4_F32, &mut y));
            assert_eq!(status, NVFP4_OK, "{}", last());
            let output = y_of(NVFP4_F32, &mut of_experts);
            let (ids, weights) = (ids.as_ptr(), weights.as_ptr());
            let status = nvfp4_experts_forward(others, &vectors, 1, ids, weights, 1, &output);
            assert_eq!(status, NVFP4_OK, "{}", last());
            let mut expected = vec![f32::NAN; M];
            let rust = rust.clone().with_gate(gate).unwrap();
            let output = Output::of(&mut expected);
            rust.forward(&Vectors::of(&x), 1, output).unwrap();
            assert_eq!((&y, &of_experts), (&expected, &expected));
            assert!(!all.contains(&y), "each gate is another result");
            all.push(y);
            nvfp4_mlp_free(mlp);
            nvfp4_experts_free(others);
        }
        let mut other = null_mut();
        let status = nvfp4_mlp_with_gate(plain, NVFP4_RMS_NORM, 1.0, 1.0, &mut other);
        refused(status, NVFP4_BAD_ARGUMENT, "4 is no gate");
        let status = nvfp4_mlp_with_gate(plain, NVFP4_CLAMPED, 1.0, f32::NAN, &mut other);
        refused(status, NVFP4_BAD_OPERAND, "limit of the gate");
        let status = nvfp4_mlp_with_gate(null(), NVFP4_SILU, 1.0, 1.0, &mut other);
        refused(status, NVFP4_BAD_ARGUMENT, "mlp is NULL");
        let status = nvfp4_experts_with_gate(null(), NVFP4_SILU, 1.0, 1.0, &mut null_mut());
        refused(status, NVFP4_BAD_ARGUMENT, "experts is NULL");
        nvfp4_mlp_free(plain);
        nvfp4_experts_free(experts);
        nvfp4_linear_free(gate_up);
        nvfp4_linear_free(down);
    }
}

/// Threads read a layer's memory while results are written: of a layer alone, and of an MLP's and experts' layers.
#[test]
fn results_over_what_a_layer_reads_are_refused() {
    const N: usize = 32;
    let dense: Vec<f32> = (0..N * N).map(|i| (i as f32 * 0.7).sin()).collect();
    let rust = Linear::from_dense(&dense, N, N).unwrap();
    // In words, where floats may lie.
    let words = |bytes: &[u8]| -> Vec<u32> {
        let words = bytes.chunks_exact(4);
        words
            .map(|of| u32::from_ne_bytes(of.try_into().unwrap()))
            .collect()
    };
    let mut codes = words(rust.weights().codes());
    let mut scales = words(rust.weights().scales());
    let before = (codes.clone(), scales.clone());
    let (alpha, bias) = ([1.0f32; N], [0.5f32; N]);
    let (places, addresses) = {
        let places = [codes.as_mut_ptr(), scales.as_mut_ptr()];
        (places, places.map(|of| of.cast_const().cast::<u8>()))
    };
    let parts = nvfp4_weights {
        rows: N,
        k: N,
        codes: addresses[0],
        codes_bytes: 4 * codes.len(),
        scales: addresses[1],
        scales_bytes: 4 * scales.len(),
        layout: NVFP4_LINEAR,
        global_kind: NVFP4_MULTIPLIER,
        global: rust.weights().global().multiplier() as f32,
        row_alpha: alpha.as_ptr(),
        bias: bias.as_ptr(),
    };
    let x = [1.0f32; N];
    let x = x_of(NVFP4_F32, &x);
    // SAFETY: all is there, and freed once; what is refused is not written.
    unsafe {
        let (mut linear, mut mlp, mut experts) = (null_mut(), null_mut(), null_mut());
        let status = nvfp4_linear_borrowing_parts(&parts, &mut linear);
        assert_eq!(status, NVFP4_OK, "{}", last());
        let status = nvfp4_mlp_new(linear, linear, linear, &mut mlp);
        assert_eq!(status, NVFP4_OK, "{}", last());
        let status = nvfp4_experts_new([mlp.cast_const()].as_ptr(), 1, &mut experts);
        assert_eq!(status, NVFP4_OK, "{}", last());
        let there = parts_of(linear);
        let copies = [there.row_alpha.cast_mut(), there.bias.cast_mut()];
        // The last word of the codes, and the first of the scales; and what the library has copied.
        let [codes_at, scales_at] = places.map(|of| of.cast::<c_void>());
        for (at, what) in [
            (codes_at.wrapping_byte_add(4 * codes.len() - 4), "codes"),
            (scales_at, "scales"),
            (copies[0].cast(), "row_alpha"),
            (copies[1].cast(), "bias"),
        ] {
            let y = nvfp4_output {
                element: NVFP4_F32,
                accumulate: 0,
                values: at,
                values_bytes: 4,
            };
            let (ids, weights) = (0, 1.0);
            for status in [
                nvfp4_linear_forward(linear, &x, 1, &y),
                nvfp4_mlp_forward(mlp, &x, 1, &y),
                nvfp4_experts_forward(experts, &x, 1, &ids, &weights, 1, &y),
            ] {
                let says = format!("y.values and a layer's {what} overlap");
                refused(status, NVFP4_BAD_ARGUMENT, &says);
            }
        }
        nvfp4_experts_free(experts);
        nvfp4_mlp_free(mlp);
        nvfp4_linear_free(linear);
    }
    assert!((codes, scales) == before, "nothing was written");
}

#[cfg(feature = "device")]
#[test]
fn what_is_quantised_by_address_is_checked() {
    let good = nvfp4_quantization {
        n: 2,
        k: 64,
        first: NVFP4_AS_THEY_ARE,
        order: NVFP4_STACKED,
        alpha: 1.0,
        limit: 1.0,
        norm_weight: 0,
        epsilon: 0.0,
        chained: 0,
        element: NVFP4_BF16,
        layout: NVFP4_LINEAR,
        values: 1 << 40,
        row_stride: 0,
        codes: 2 << 40,
        scales: 3 << 40,
        vector_alpha: 4 << 40,
    };
    let refuses = |q: nvfp4_quantization, says: &str| {
        // SAFETY: each is refused before an address is used.
        let status = unsafe { nvfp4_quantize(&q, null_mut()) };
        assert!(
            status != NVFP4_OK && last().contains(says),
            "{status}, {}",
            last()
        );
    };
    refuses(nvfp4_quantization { first: 9, ..good }, "9 is nothing that");
    refuses(nvfp4_quantization { k: 40, ..good }, "multiple of 16");
    refuses(
        nvfp4_quantization {
            element: NVFP4_CODES,
            ..good
        },
        "no element type",
    );
    refuses(nvfp4_quantization { values: 8, ..good }, "vectors");
    let (first, order, limit) = (NVFP4_CLAMPED, 7, -1.0);
    refuses(
        nvfp4_quantization {
            first,
            order,
            ..good
        },
        "7 is no order",
    );
    refuses(
        nvfp4_quantization {
            first,
            limit,
            ..good
        },
        "limit of the gate is -1",
    );
    let first = NVFP4_RMS_NORM;
    refuses(
        nvfp4_quantization { first, ..good },
        "weight of the RMSNorm: null",
    );
    // A gate's vectors have twice as many elements.
    let (first, row_stride) = (NVFP4_SILU, 128);
    refuses(
        nvfp4_quantization {
            first,
            row_stride,
            ..good
        },
        "256",
    );
}

/// Without a driver, or without calls on devices, experts stay on the host, and that is said.
#[test]
fn experts_on_a_device_need_one() {
    let (mut mlp, mut experts, mut on_device) = (null_mut(), null_mut(), std::ptr::dangling_mut());
    let mut call = std::ptr::dangling_mut();
    // SAFETY: all is there or NULL, and freed once.
    unsafe {
        let linear = of_dense();
        let parts = parts_of(linear);
        let square = nvfp4_weights {
            rows: 16,
            k: 16,
            codes_bytes: 16 * 8,
            scales_bytes: 16,
            ..parts
        };
        let mut layer = null_mut();
        assert_eq!(nvfp4_linear_from_parts(&square, &mut layer), NVFP4_OK);
        assert_eq!(nvfp4_mlp_new(layer, layer, layer, &mut mlp), NVFP4_OK);
        let mlps = [mlp.cast_const()];
        assert_eq!(nvfp4_experts_new(mlps.as_ptr(), 1, &mut experts), NVFP4_OK);
        let of = |experts: *const nvfp4_experts, layout, on_device| {
            nvfp4_experts_on_device(experts, layout, 0, on_device)
        };
        refused(
            of(null(), NVFP4_LINEAR, &mut on_device),
            NVFP4_BAD_ARGUMENT,
            "experts is NULL",
        );
        assert!(on_device.is_null());
        refused(
            of(experts, 2, &mut on_device),
            NVFP4_BAD_ARGUMENT,
            "2 is no layout",
        );
        refused(
            of(experts, NVFP4_LINEAR, null_mut()),
            NVFP4_BAD_ARGUMENT,
            "the place for the result",
        );
        // Where there is a driver, no context is current.
        let status = of(experts, NVFP4_LINEAR, &mut on_device);
        assert!(
            [NVFP4_UNAVAILABLE, NVFP4_BAD_ARGUMENT].contains(&status),
            "{status}: {}",
            last()
        );
        assert!(on_device.is_null());
        let (x, y) = (null(), null());
        let status = nvfp4_experts_call_prepare(on_device, x, 1, 0, 0, 1, y, null_mut(), &mut call);
        refused(status, NVFP4_BAD_ARGUMENT, "experts is NULL");
        assert!(call.is_null());
        let status = nvfp4_experts_call_launch(null());
        refused(status, NVFP4_BAD_ARGUMENT, "call is NULL");
        nvfp4_experts_call_free(null_mut());
        nvfp4_device_experts_free(null_mut());
        nvfp4_experts_free(experts);
        nvfp4_mlp_free(mlp);
        nvfp4_linear_free(layer);
        nvfp4_linear_free(linear);
    }
}
