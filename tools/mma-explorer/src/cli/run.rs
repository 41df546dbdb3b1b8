use anyhow::{Context, Result};
use mma_explorer::arch::Arch;
use mma_explorer::cache::Cache;
use mma_explorer::matmul::Tiles;
use mma_explorer::results::Measured;
use mma_explorer::source;
use mma_explorer::variants::{Family, Variant};
use serde_json::json;

use super::measuring::{Bench, each, fastest, text};
use super::{Filter, Report, progress};

/// Measure variants on this machine's GPU: latency, throughput, and a matrix product
///
/// For each variant: cycles from one instruction to the next that needs its result; operations a second of nothing but
/// the instruction, and a cycle and multiprocessor; and a matrix product, which is first checked on exact data, with
/// its share of that rate, of the data sheet's, and of cuBLASLt's in alternating rounds.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    filter: Filter,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Rows and columns of D, and the sum's length; of a row of A at least 16 bytes. Several: the tiles that are
    /// fastest for the first one are used for all
    #[arg(long = "size", default_values_t = [8192], value_parser = clap::value_parser!(u32).range(1..))]
    sizes: Vec<u32>,
    /// The matmul kernel's tiles, of which the fastest counts; without any, a list of usual ones. A variant that some
    /// of them do not suit is not measured, and said to be so
    #[arg(long)]
    tiles: Vec<Tiles>,
    /// Leave out latency and throughput of nothing but the instruction
    #[arg(long)]
    no_peak: bool,
    /// End before the next variant after so many seconds
    #[arg(long)]
    seconds: Option<u64>,
}

/// Tiles that are tried where none are asked for. The first four are for GPUs with bulk copies and 227 KiB of shared
/// memory, the fourth where sums are 16 bits; the others are for smaller ones.
const USUAL: &str = "192x256x128/96x64/4/8/bulk 128x256x128/64x64/4/8/bulk 256x128x128/64x64/4/8/bulk \
    256x256x128/128x64/3/8/bulk 128x256x64/64x64/4/8/bulk 128x256x64/64x64/4/8 128x128x64/64x64/4/8 \
    128x128x128/64x32/3/8 64x128x64/32x64/4/8";
const USUAL_WGMMA: &str = "128x256x128/64x256/4/8/2 128x256x128/64x256/4/16/2 128x256x128/64x256/4/8 \
    256x128x128/128x128/4/8/2 128x128x128/64x128/6/8/2";
const USUAL_TCGEN05: &str = "128x256x128/128x256/4/8 128x256x128/256x256/6/8/2 128x256x128/256x256/5/8/2 \
    256x128x128/256x128/4/8/2 128x256x128/128x256/4/8/2 128x256x128/128x256/4/16/2 256x128x128/128x128/4/8 \
    256x128x128/128x128/4/8/2 128x128x128/128x128/6/8/2";

/// The tiles that are tried with a variant: those asked for, which must suit it, or usual ones that do.
fn candidates(asked: &[Tiles], variant: &Variant, arch: Arch) -> Result<Vec<Tiles>> {
    let suits = |tiles: &Tiles| tiles.check(variant, arch);
    for tiles in asked {
        suits(tiles).with_context(|| format!("--tiles {tiles}"))?;
    }
    if !asked.is_empty() {
        return Ok(asked.to_vec());
    }
    let usual = match variant.family() {
        Family::Mma => USUAL,
        Family::Wgmma => USUAL_WGMMA,
        Family::Tcgen05 => USUAL_TCGEN05,
    };
    let all = usual.split(' ').filter_map(|tiles| tiles.parse().ok());
    Ok(all.filter(|tiles| suits(tiles).is_ok()).collect())
}

pub(crate) fn run(args: &Args, cache: &Cache) -> Result<Report> {
    let (bench, variants) = Bench::open(args.device, &args.filter, cache)?;
    let mut sources = Vec::new();
    for variant in &variants {
        if !args.no_peak {
            sources.push(source::measure(variant, bench.device.arch));
        }
        // Tiles that do not suit are reported in the variant's turn.
        let tiles = candidates(&args.tiles, variant, bench.device.arch).unwrap_or_default();
        sources.extend(tiles.iter().map(|tiles| source::matmul(variant, tiles)));
    }
    bench.compile_ahead(&sources);
    let all = each(&bench, &variants, args.seconds, |i, variant| {
        progress(i, variants.len(), &variant.name());
        one(args, &bench, variant)
    });
    let passed = all.iter().all(|measured| measured.wrong.is_none());
    let results = bench.results(all);
    Ok(Report {
        text: text(&results),
        json: json!(results),
        passed,
    })
}

fn one(args: &Args, bench: &Bench<'_>, variant: &Variant) -> Result<Measured> {
    let mut measured = bench.described(variant);
    let candidates = candidates(&args.tiles, variant, bench.device.arch)?;
    if !args.no_peak {
        let compiled = bench.compile(&source::measure(variant, bench.device.arch))?;
        measured.peak = Some(bench.device.peak(variant, &compiled)?);
    }
    measured.sum_bits = bench.sum_bits(variant)?;
    for (i, &size) in args.sizes.iter().enumerate() {
        let mut workload = bench.workload(variant, size)?;
        if i == 0 {
            for tiles in &candidates {
                measured.wrong = bench.check(variant, tiles)?;
                if measured.wrong.is_some() {
                    return Ok(measured);
                }
                let tried = bench.quick(&mut workload, tiles, f64::INFINITY)?;
                measured.tried.extend(tried);
            }
        }
        let best = fastest(&measured.tried, args.sizes[0]);
        if let Some(tiles) = best.and_then(|best| best.tiles.parse().ok()) {
            measured
                .products
                .push(bench.product(&mut workload, &tiles)?);
        }
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use mma_explorer::variants;

    use super::*;

    #[test]
    fn tiles_that_were_asked_for_are_not_dropped() {
        let variant = variants::find("mma.m16n8k16.f32.f16.f16").unwrap();
        let arch = |name: &str| name.parse::<Arch>().unwrap();
        let of_wgmma: Tiles = "128x256x128/64x256/4/8/2".parse().unwrap();
        let asked = [Tiles::default(), of_wgmma];
        let error = candidates(&asked, &variant, arch("90a")).unwrap_err();
        let says = format!("{error:#}");
        assert!(
            says.contains("--tiles 128x256x128/64x256/4/8/2: cluster of 2"),
            "{says}"
        );
        let fit = candidates(&asked[..1], &variant, arch("90a")).unwrap();
        assert_eq!(fit, [Tiles::default()]);
        for (arch_name, some) in [("80", 4), ("90a", 4)] {
            let usual = candidates(&[], &variant, arch(arch_name)).unwrap();
            assert!(usual.len() >= some, "{arch_name}: {usual:?}");
        }
    }
}
