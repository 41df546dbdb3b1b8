//! The CPU path against this machine's streaming-read bandwidth. Both alternate strictly, so that other work of the
//! machine meets both alike.
//!
//! `cargo bench --no-default-features --bench cpu_ratio [-- ROUNDS [M K]]`

use std::time::Instant;

use half::f16;
use nvfp4_gemv::cpu::{Implementation, StreamingRead, gemv_with};
use nvfp4_gemv::{GlobalScale, Output, ScaleLayout, Shape, Vectors, Weights, convert_scales};

fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let rounds = numbers.first().copied().unwrap_or(15);
    let (m, k) = match numbers[..] {
        [_, m, k] => (m, k),
        _ => (65536, 16384),
    };
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let shape = Shape::matrix(m, k).expect("a shape");
    let mut random = fastrand::Rng::with_seed(1);
    let codes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(shape.weight_code_bytes())
        .collect();
    let linear: Vec<u8> = std::iter::repeat_with(|| random.u8(0..0x7f))
        .take(m * shape.blocks())
        .collect();
    let tiled = convert_scales(
        &linear,
        ScaleLayout::Linear,
        ScaleLayout::Tiled128x4,
        m,
        k,
        1,
    )
    .expect("scales");
    let x4: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(k / 2)
        .collect();
    let x4_scales: Vec<u8> = std::iter::repeat_with(|| random.u8(0..0x7f))
        .take(k / 16)
        .collect();
    let x16: Vec<f16> = (0..k).map(|_| f16::from_f32(random.f32() - 0.5)).collect();
    let mut y = vec![0.0f32; m];

    let gb = shape.weight_bytes() as f64 / 1e9;
    println!("M = {m}, K = {k}: {gb:.3} GB of weights; medians of {rounds} pairs");
    println!("threads  what                         read GB/s gemv GB/s  ratio");
    for threads in [1, all] {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("threads");
        let read = StreamingRead::new(shape.weight_bytes(), threads);
        println!("{threads} threads: the fastest read is {}", read.way());
        // Each product has a read of its own just before it: other work of the machine changes from second to second,
        // and meets such a pair alike.
        let mut rows: Vec<(String, Vec<[f64; 2]>)> = Vec::new();
        for round in 0..rounds + 1 {
            let mut row = 0;
            let mut note = |name: String, read: f64, rate: f64| {
                if row == rows.len() {
                    rows.push((name, Vec::new()));
                }
                // The first round warms up.
                if round > 0 {
                    rows[row].1.push([read, rate]);
                }
                row += 1;
            };
            for implementation in Implementation::ALL {
                if !implementation.available() || implementation == Implementation::Portable {
                    continue;
                }
                for (layout, scales) in [
                    (ScaleLayout::Linear, &linear),
                    (ScaleLayout::Tiled128x4, &tiled),
                ] {
                    let w = Weights::new(&shape, &codes, scales, layout, GlobalScale::ONE)
                        .expect("weights");
                    for x in [
                        Vectors::nvfp4(&x4, &x4_scales, ScaleLayout::Linear, GlobalScale::ONE),
                        Vectors::of(&x16),
                    ] {
                        let ceiling = read.pass() / 1e9;
                        let start = Instant::now();
                        pool.install(|| {
                            gemv_with(implementation, &shape, &w, &x, Output::of(&mut y))
                        })
                        .expect("a result");
                        let rate = gb / start.elapsed().as_secs_f64();
                        let name = format!("{implementation} {} {layout}", x.activation());
                        note(name, ceiling, rate);
                    }
                }
            }
        }
        let median = |values: &mut dyn Iterator<Item = f64>| {
            let mut values: Vec<f64> = values.collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        for (name, pairs) in &rows {
            println!(
                "{threads:7}  {name:28} {:9.1} {:9.1}  {:.2}",
                median(&mut pairs.iter().map(|[read, _]| *read)),
                median(&mut pairs.iter().map(|[_, rate]| *rate)),
                median(&mut pairs.iter().map(|[read, rate]| rate / read)),
            );
        }
    }
}
