//! The cost of a step on a GPU, and where its time goes.

use std::time::Instant;

use anyhow::{Result, ensure};
use nvfp4_gemv::kernel::read_only::ReadConfig;
use nvfp4_gemv::measure::{ReadOnly, Stopwatch};

use super::decoder::{DeviceModel, capture};
use super::pass::Wanted;
use crate::model::{PASS, Reader};

/// Bytes of a launch of the long read, as `nvfp4-gemv bench` has it.
const LONG_READ: usize = 1 << 30;
/// Replays that are timed, and those before.
const REPLAYS: usize = 24;
const WARM_UP: usize = 4;
/// Tokens of passes of guesses.
const GUESSED: [usize; 6] = [1, 2, 3, 4, 6, 8];

/// Prints tokens a second behind a text of so many tokens, what a step's time is made of, and its share of the rate of
/// a long read. What the model has read is forgotten.
///
/// # Errors
/// A text that the model has no room for; errors of the device.
pub fn bench(model: &mut DeviceModel, prompt: usize, written: usize) -> Result<()> {
    let steps = written.max(REPLAYS + WARM_UP);
    ensure!(
        prompt > 0 && prompt + steps + 2 <= model.capacity(),
        "a text of {prompt} tokens and {steps} more needs a --context of {}",
        prompt + steps + 2
    );
    let vocabulary = model.vocabulary() as u32;
    let text: Vec<u32> = (0..prompt as u32).map(|i| i * 7919 % vocabulary).collect();
    // The first time kernels are compiled, and calls prepared.
    model.reset();
    model.read(&text)?;
    let mut next = model.likeliest(&text[..1])?;
    next = model.likeliest(&next)?;
    model.reset();
    let start = Instant::now();
    model.read(&text)?;
    let reading = start.elapsed().as_secs_f64();
    let start = Instant::now();
    for _ in 0..written {
        next = model.likeliest(&next)?;
    }
    let writing = start.elapsed().as_secs_f64();
    println!(
        "{}: read {prompt} tokens in {:.1} ms, {:.0} a second (passes of {PASS}); wrote {written}, {:.1} a second",
        model.gpu(),
        1e3 * reading,
        prompt as f64 / reading,
        written as f64 / writing
    );

    let rate = long_read(model)?;
    let bytes = model.parts.bytes();
    println!(
        "a long read: {:.0} GB/s; a step reads {:.3} GB of weights, {:.3} ms of a long read",
        rate / 1e9,
        bytes as f64 / 1e9,
        1e3 * bytes as f64 / rate
    );
    let share = |seconds: f64| bytes as f64 / seconds / rate;
    let all = Wanted::ALL;
    let nothing = Wanted {
        products: false,
        vectors: false,
        attention: false,
        ends: false,
    };
    let ways = [
        ("the whole step", all),
        (
            "linear layers and experts alone",
            Wanted {
                products: true,
                ..nothing
            },
        ),
        (
            "those, with norms, gates and quantisers",
            Wanted {
                attention: false,
                ends: false,
                ..all
            },
        ),
        (
            "all but attention",
            Wanted {
                attention: false,
                ..all
            },
        ),
        (
            "all but embedding and choice",
            Wanted { ends: false, ..all },
        ),
        (
            "all but linear layers and experts",
            Wanted {
                products: false,
                ..all
            },
        ),
        (
            "attention alone",
            Wanted {
                attention: true,
                ..nothing
            },
        ),
        (
            "norms, gates and quantisers alone",
            Wanted {
                vectors: true,
                ..nothing
            },
        ),
    ];
    println!("behind {prompt} tokens, a graph of each, median of {REPLAYS} replays:");
    println!("| what is computed | ms | of the long read's rate |\n|---|---|---|");
    let (mut whole, mut around) = (0.0, 0.0);
    for (name, wanted) in ways {
        let seconds = replay(model, prompt, next[0], wanted)?;
        match wanted {
            _ if wanted == all => whole = seconds,
            _ if !wanted.products && wanted.ends => around = seconds,
            _ => {}
        }
        let of_rate = match wanted.products {
            true => format!("{:.3}", share(seconds)),
            false => String::new(),
        };
        println!("| {name} | {:.4} | {of_rate} |", 1e3 * seconds);
    }
    println!(
        "linear layers in the step, the time of all else taken away: {:.4} ms, {:.3} of the long read's rate",
        1e3 * (whole - around),
        share(whole - around)
    );
    println!(
        "passes of guessed tokens, as --draft makes them, median of {REPLAYS}; tokens a second if all are right:"
    );
    println!("| tokens | ms | tokens a second |\n|---|---|---|");
    for n in GUESSED.into_iter().filter(|n| *n <= prompt) {
        let seconds = pass(model, &text, n)?;
        println!("| {n} | {:.4} | {:.0} |", 1e3 * seconds, n as f64 / seconds);
    }
    model.reset();
    Ok(())
}

/// Seconds of a pass of so many tokens behind a text, whose likeliest tokens come back, by the host's clock.
fn pass(model: &mut DeviceModel, text: &[u32], n: usize) -> Result<f64> {
    model.reset();
    model.read(text)?;
    let mut seconds = Vec::new();
    for replay in 0..WARM_UP + REPLAYS {
        let start = Instant::now();
        model.likeliest(&text[..n])?;
        if replay >= WARM_UP {
            seconds.push(start.elapsed().as_secs_f64());
        }
        model.truncate(text.len())?;
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}

/// Seconds of a step with some of its parts, at a position and those behind it.
fn replay(model: &mut DeviceModel, position: usize, token: u32, wanted: Wanted) -> Result<f64> {
    let (pass, place, parts, shared) = model.step(position, token)?;
    let graph = capture(place, pass, parts, shared, wanted)?;
    let stopwatch = Stopwatch::new(&place.stream)?;
    let mut seconds = Vec::new();
    for replay in 0..WARM_UP + REPLAYS {
        stopwatch.start()?;
        graph.launch()?;
        let took = stopwatch.stop()?;
        if replay >= WARM_UP {
            seconds.push(took);
        }
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}

/// Bytes a second of the fastest kernel that only reads.
fn long_read(model: &DeviceModel) -> Result<f64> {
    let place = &model.place;
    // SAFETY: what is there is read and means nothing.
    let data = unsafe { place.stream.alloc::<u8>(LONG_READ) }?;
    let read = ReadOnly::new(&place.stream, &data, &place.gpu)?;
    let ranking = read.rank(&ReadConfig::candidates(&place.gpu), LONG_READ, 2, 3, |_| 0)?;
    let fastest: Vec<ReadConfig> = ranking.into_iter().take(3).map(|(of, _)| of).collect();
    let ranking = read.rank(&fastest, LONG_READ, 4, 9, |_| 0)?;
    Ok(LONG_READ as f64 / ranking[0].1.median)
}
