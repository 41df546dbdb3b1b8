//! Floats to codes: around every boundary between codes, and far from all of them.

use super::trial::{ALL, BLACKWELL, Kernels, Trial, bytes32};

crate::trials! {
    simulator: nearest_codes, instructions_take_signs_and_nan;
}

/// Values of the codes without a sign, in order.
fn e4m3_values() -> Vec<f64> {
    let value = |c: u32| match c >> 3 {
        0 => f64::from(c) / 512.0,
        e => f64::from(8 + (c & 7)) * 2f64.powi(e as i32 - 10),
    };
    (0..0x7f).map(value).collect()
}

const E2M1_VALUES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The nearest value's code, by search; of two the even one; the last one for what is beyond it.
fn nearest(values: &[f64], x: f32) -> u8 {
    let x = f64::from(x).abs();
    if x.is_nan() || x >= *values.last().unwrap() {
        return (values.len() - 1) as u8;
    }
    let above = values.iter().position(|v| *v > x).unwrap();
    let (low, high) = (x - values[above - 1], values[above] - x);
    let below = low < high || low == high && (above - 1).is_multiple_of(2);
    (above - usize::from(below)) as u8
}

/// Values, boundaries, the floats next to both, and noise.
fn sweep(values: &[f64]) -> Vec<f32> {
    let mut points: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    points.extend(values.windows(2).map(|v| ((v[0] + v[1]) / 2.0) as f32));
    let around = |x: f32| [x, x.next_down().max(0.0), x.next_up()];
    let mut all: Vec<f32> = points.into_iter().flat_map(around).collect();
    let last = *values.last().unwrap() as f32;
    all.extend([last * 1.03, last * 1.5, 1e30, f32::MAX, f32::INFINITY]);
    all.extend([
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::from_bits(0x007f_ffff),
    ]);
    let mut rng = fastrand::Rng::with_seed(9);
    let limits = (values[1] as f32 / 8.0).to_bits()..(last * 2.0).to_bits();
    all.extend((0..2000).map(|_| f32::from_bits(rng.u32(limits.clone()))));
    while !all.len().is_multiple_of(64) {
        all.push(0.0);
    }
    all
}

fn with_signs(values: Vec<f32>) -> Vec<f32> {
    values.iter().flat_map(|&x| [x, -x]).collect()
}

fn trial(kernels: &Kernels, kernel: &str, x: &[f32], count: usize, output: usize) -> Trial {
    let input = bytes32(x.iter().map(|x| x.to_bits()));
    let mut trial = kernels
        .trial(kernel, [(count / 8) as u32, 1, 1], [8, 1, 1])
        .input(&input)
        .output(output)
        .words(&[0]);
    trial.seeds = 1;
    trial
}

fn e4m3_code(x: f32) -> u8 {
    // satfinite: a NaN stays one, without its sign.
    match x.is_nan() {
        true => 0x7f,
        false => nearest(&e4m3_values(), x) | u8::from(x.is_sign_negative()) << 7,
    }
}

fn e2m1_word(x: &[f32]) -> u32 {
    let code = |x: &f32| {
        let sign = x.is_sign_negative() && !x.is_nan();
        u32::from(nearest(&E2M1_VALUES, *x)) | u32::from(sign) << 3
    };
    (0..8).map(|i| code(&x[i]) << (4 * i)).sum()
}

fn check_e4m3(kernels: &Kernels, kernel: &str, x: &[f32]) {
    let want: Vec<u8> = x.iter().map(|x| e4m3_code(*x)).collect();
    let mut trial = trial(kernels, kernel, x, x.len(), want.len());
    trial.gives(&want);
    trial.wrong(1).differs(&want);
}

fn check_e2m1(kernels: &Kernels, kernel: &str, x: &[f32]) {
    let want = bytes32(x.chunks(8).map(e2m1_word));
    let mut trial = trial(kernels, kernel, x, x.len() / 8, want.len());
    trial.gives(&want);
    trial.wrong(1).differs(&want);
}

fn nearest_codes() {
    for kernels in ALL.map(|arch| Kernels::new("encode", arch)) {
        check_e4m3(&kernels, "encode_e4m3s", &sweep(&e4m3_values()));
        check_e2m1(&kernels, "encode_e2m1s", &with_signs(sweep(&E2M1_VALUES)));
    }
}

fn instructions_take_signs_and_nan() {
    let mut e4m3 = with_signs(sweep(&e4m3_values()));
    let mut e2m1 = with_signs(sweep(&E2M1_VALUES));
    for x in [&mut e4m3, &mut e2m1] {
        x[..2].copy_from_slice(&[f32::NAN, -f32::NAN]);
    }
    for arch in &ALL[1..] {
        let kernels = Kernels::new("encode", arch);
        check_e4m3(&kernels, "cvt_to_e4m3", &e4m3);
        if *arch == BLACKWELL {
            check_e2m1(&kernels, "cvt_to_e2m1x8", &e2m1);
        }
    }
}
