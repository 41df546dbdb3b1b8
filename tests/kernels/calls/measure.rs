//! Measurements on a GPU: replays do the work, the times are times of that work, and a read stays in its data.

use nvfp4_gemv::Error;
use nvfp4_gemv::kernel::read_only::ReadConfig;
use nvfp4_gemv::measure::{ReadOnly, Replay, Stopwatch, copies_for_cold_l2, time_launches};

use crate::support::gpu::{Gpu, alone};

crate::trials! {
    gpu: replays_do_the_work_and_times_are_of_it;
}

/// One trial: a capture and a new stream of another thread would disturb each other.
fn replays_do_the_work_and_times_are_of_it() {
    let Gpu { stream, info } = Gpu::first();
    let _alone = alone();

    // Captured work runs at replays, once at each.
    let source = stream.clone_htod(&[7u32; 1024]).unwrap();
    let mut target = stream.alloc_zeros::<u32>(1024).unwrap();
    let copy = |_| {
        stream.memcpy_dtod(&source, &mut target).unwrap();
        Ok(())
    };
    // SAFETY: both buffers outlive the replays, which are waited for below.
    let replay = unsafe { Replay::capture(&stream, 3, copy) }.unwrap();
    assert_eq!(replay.launches(), 3);
    assert_eq!(stream.clone_dtoh(&target).unwrap(), [0; 1024]);
    assert!(replay.seconds_a_launch().unwrap() > 0.0);
    assert_eq!(stream.clone_dtoh(&target).unwrap(), [7; 1024]);
    drop(replay);

    // No memory reads 100 TB/s. How much faster it is, and what else it does meanwhile, is no matter here.
    let bytes = 64 << 20;
    let copies = copies_for_cold_l2(bytes, info.l2_bytes);
    let data = stream.alloc_zeros::<u8>(copies * bytes).unwrap();
    let read = ReadOnly::new(&stream, &data, &info).unwrap();
    let config = ReadConfig::DEFAULT;
    read.prepare(&config).unwrap();
    let seconds = |bytes: usize| {
        let offset = |i: usize| i % copies * (64 << 20);
        // SAFETY: the data outlives the call, and nobody writes it.
        unsafe { time_launches(&stream, 40, 5, |i| read.enqueue(&config, offset(i), bytes)) }
            .unwrap()
            .median
    };
    let (all, tenth) = (seconds(bytes), seconds(bytes / 10));
    assert!(all > bytes as f64 / 1e14, "{all}");
    assert!(tenth > bytes as f64 / 1e15, "{tenth}");

    // The stopwatch counts at least the work between its two events.
    let stopwatch = Stopwatch::new(&stream).unwrap();
    stopwatch.start().unwrap();
    read.enqueue(&config, 0, bytes).unwrap();
    assert!(stopwatch.stop().unwrap() > bytes as f64 / 1e14);

    let end = copies * bytes;
    for (offset, bytes) in [(end, 16), (0, end + 16), (16, usize::MAX)] {
        let error = read.enqueue(&config, offset, bytes).unwrap_err();
        assert!(matches!(error, Error::BufferTooShort { .. }), "{error}");
    }
    let ranking = read
        .rank(&ReadConfig::candidates(&info), bytes, copies, 3, |i| {
            i * bytes
        })
        .unwrap();
    assert_eq!(ranking.len(), ReadConfig::candidates(&info).len());
    assert!(ranking.is_sorted_by(|(_, a), (_, b)| a.median <= b.median));
    assert!(ranking[0].1.median > bytes as f64 / 1e14, "{ranking:?}");
    // A launch that fails leaves the stream usable.
    // SAFETY: nothing is enqueued.
    let failed = unsafe { time_launches(&stream, 2, 1, |_| read.enqueue(&config, end, 16)) };
    assert!(matches!(failed, Err(Error::BufferTooShort { .. })));
    assert!(seconds(1 << 20) > 0.0);
    // A launch that panics leaves the stream usable, too.
    let panics = std::panic::AssertUnwindSafe(|| {
        // SAFETY: nothing is enqueued.
        let _ = unsafe { time_launches(&stream, 1, 1, |_| panic!("in a capture")) };
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    assert!(seconds(1 << 20) > 0.0);
}
