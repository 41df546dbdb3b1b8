//! Wall time of the CPU path, with throughput in weight bytes.
//!
//! `cargo bench --no-default-features --bench cpu [-- FILTER]`

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use nvfp4_gemv::cpu::{Implementation, gemv_with};
use nvfp4_gemv::{Dims, GlobalScale, Output, ScaleLayout, Shape, Vectors, Weights};

fn bytes(random: &mut fastrand::Rng, count: usize, below: u16) -> Vec<u8> {
    (0..count).map(|_| random.u16(0..below) as u8).collect()
}

fn shapes(c: &mut Criterion) {
    let mut random = fastrand::Rng::with_seed(1);
    // A small layer that caches hold, a decoder layer for 1 to 16 vectors, and one past any
    // cache.
    for (m, n, k) in [
        (384, 1, 384),
        (4096, 1, 7168),
        (4096, 4, 7168),
        (4096, 8, 7168),
        (4096, 16, 7168),
        (28672, 1, 8192),
    ] {
        let shape = Shape::new(Dims { m, n, k, l: 1 }).expect("a shape");
        let codes = bytes(&mut random, shape.weight_code_bytes(), 256);
        let layout = ScaleLayout::Tiled128x4;
        let scales = bytes(&mut random, shape.weight_scale_bytes(layout), 0x7f);
        let w = Weights::new(&shape, &codes, &scales, layout, GlobalScale::ONE).expect("weights");
        let x = bytes(&mut random, n * k / 2, 256);
        let x_scales = bytes(&mut random, n * k / 16, 0x7f);
        let wide: Vec<bf16> = (0..n * k)
            .map(|_| bf16::from_f32(random.f32() - 0.5))
            .collect();
        let mut y = vec![bf16::ZERO; shape.outputs()];
        let mut group = c.benchmark_group(shape.to_string());
        group.throughput(Throughput::Bytes(shape.weight_bytes() as u64));
        group.sample_size(20);
        for implementation in Implementation::ALL {
            if !implementation.available() {
                continue;
            }
            for x in [
                Vectors::nvfp4(&x, &x_scales, ScaleLayout::Linear, GlobalScale::ONE),
                Vectors::of(&wide),
            ] {
                let id = BenchmarkId::new(implementation.name(), x.activation());
                group.bench_function(id, |b| {
                    b.iter(|| gemv_with(implementation, &shape, &w, &x, Output::of(&mut y)));
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, shapes);
criterion_main!(benches);
