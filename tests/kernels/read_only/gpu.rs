//! The kernels that only read, on a GPU.

use nvfp4_gemv::kernel::read_only::{Read, ReadConfig, Share};
use nvfp4_gemv::{Error, raw};

use super::{configs, data};
use crate::support::gpu::Gpu;

crate::trials! {
    gpu: every_config_reads_everything_once, what_the_gpu_cannot_run_is_refused;
}

/// Value of the sink before a launch.
const BEFORE: u32 = 5;

fn every_config_reads_everything_once() {
    let gpu = Gpu::first();
    for bytes in [16, 63, 20_016, (9 << 20) + 272, 132 << 20] {
        let (data, sum) = data(bytes);
        let data = gpu.upload(&data);
        for config in configs(&gpu.info) {
            for sums in [true, false] {
                let sink = gpu.upload(&[BEFORE]);
                let read = Read {
                    data: gpu.address(&data),
                    bytes,
                    sink: gpu.address(&sink),
                    sums,
                };
                // SAFETY: the data and the sink outlive the work, which is waited for below.
                unsafe { raw::read_only(&config, &read, &gpu.info, gpu.handle()) }.unwrap();
                let got = gpu.stream.clone_dtoh(&sink).unwrap();
                let want = if sums {
                    BEFORE.wrapping_add(sum)
                } else {
                    BEFORE
                };
                assert_eq!(got, [want], "{config}, {bytes} bytes");
            }
        }
    }
}

fn what_the_gpu_cannot_run_is_refused() {
    let gpu = Gpu::first();
    let memory = gpu.upload(&[0u32; 8]);
    let read = Read {
        data: gpu.address(&memory),
        bytes: 16,
        sink: gpu.address(&memory) + 16,
        sums: false,
    };
    let no_threads = ReadConfig::Loads {
        loads: 4,
        threads: 0,
        share: Share::Pieces,
    };
    let refused = |config: &ReadConfig, read: &Read| {
        // SAFETY: refused before anything is enqueued.
        unsafe { raw::read_only(config, read, &gpu.info, gpu.handle()) }.unwrap_err()
    };
    assert!(matches!(refused(&no_threads, &read), Error::Config { .. }));
    let odd = Read {
        data: read.data + 8,
        ..read
    };
    assert!(matches!(
        refused(&ReadConfig::DEFAULT, &odd),
        Error::Misaligned { .. }
    ));
}
