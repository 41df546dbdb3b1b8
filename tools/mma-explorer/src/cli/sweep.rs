use anyhow::Result;
use mma_explorer::arch::Arch;
use mma_explorer::cache::Cache;
use mma_explorer::matmul::Tiles;
use mma_explorer::results::Measured;
use mma_explorer::source;
use mma_explorer::variants::{Family, Variant};
use serde_json::json;

use super::measuring::{Bench, each, fastest, text};
use super::{Filter, Report, progress};

/// Try many tiles with each variant on this machine's GPU
///
/// Each tiling is checked on exact data and run once; one that takes more than half as long again as the fastest is
/// dropped. The sweep of a variant ends early where `--patience` tilings in a row brought less than one percent. The
/// fastest tiles are then measured as `run` does. Progress goes to stderr.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    filter: Filter,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Rows and columns of D, and the sum's length
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,
    /// So many tilings without gain end a variant's sweep
    #[arg(long, default_value_t = 16)]
    patience: usize,
    /// End before the next variant after so many seconds
    #[arg(long)]
    seconds: Option<u64>,
}

pub(crate) fn run(args: &Args, cache: &Cache) -> Result<Report> {
    let (bench, variants) = Bench::open(args.device, &args.filter, cache)?;
    let all = each(&bench, &variants, args.seconds, |i, variant| {
        let number = format!("{}/{}", i + 1, variants.len());
        one(args, &bench, variant, &number)
    });
    let passed = all.iter().all(|measured| measured.wrong.is_none());
    let results = bench.results(all);
    let mut lines = text(&results);
    for measured in &results.variants {
        let mut tried = measured.tried.clone();
        tried.sort_by(|a, b| b.operations.total_cmp(&a.operations));
        lines += &format!("\n{}: {} tilings\n", measured.name, tried.len());
        for tried in tried.iter().take(8) {
            lines += &format!("  {:7.1} T/s  {}\n", tried.operations / 1e12, tried.tiles);
        }
    }
    Ok(Report {
        text: lines,
        json: json!(results),
        passed,
    })
}

fn one(args: &Args, bench: &Bench<'_>, variant: &Variant, number: &str) -> Result<Measured> {
    let mut measured = bench.described(variant);
    let candidates = candidates(variant, bench.device.arch);
    let mut workload = bench.workload(variant, args.size)?;
    let mut search = Search::new(args.patience);
    // Sixteen at once, so that all processors compile.
    for (part, some) in candidates.chunks(16).enumerate() {
        let sources = some.iter().map(|tiles| source::matmul(variant, tiles));
        bench.compile_ahead(&sources.collect::<Vec<_>>());
        for (i, tiles) in some.iter().enumerate() {
            let name = format!("{number} {}: {tiles}", variant.name());
            progress(part * 16 + i, candidates.len(), &name);
            measured.wrong = bench.check(variant, tiles)?;
            if measured.wrong.is_some() {
                return Ok(measured);
            }
            let tried = bench.quick(&mut workload, tiles, search.limit())?;
            let work = 2.0 * f64::from(args.size).powi(3);
            search.note(tried.as_ref().map(|tried| work / tried.operations));
            measured.tried.extend(tried);
            if search.is_over() {
                break;
            }
        }
        if search.is_over() {
            break;
        }
    }
    let best = fastest(&measured.tried, args.size).and_then(|best| best.tiles.parse().ok());
    if let Some(tiles) = best {
        let product = bench.product(&mut workload, &tiles)?;
        measured.products.push(product);
    }
    Ok(measured)
}

/// When a sweep ends.
#[derive(Debug)]
struct Search {
    patience: usize,
    best: f64,
    without_gain: usize,
}

impl Search {
    fn new(patience: usize) -> Self {
        Self {
            patience: patience.max(1),
            best: f64::INFINITY,
            without_gain: 0,
        }
    }

    /// Seconds beyond which tiles are dropped after one run.
    fn limit(&self) -> f64 {
        self.best * 1.5
    }

    /// Seconds of the next tiles; none where they were dropped.
    fn note(&mut self, seconds: Option<f64>) {
        let seconds = seconds.unwrap_or(f64::INFINITY);
        let gains = seconds < self.best * 0.99;
        self.without_gain = if gains { 0 } else { self.without_gain + 1 };
        self.best = self.best.min(seconds);
    }

    fn is_over(&self) -> bool {
        self.without_gain >= self.patience
    }
}

/// Blocks and warpgroups.
const WGMMA: &str = "
    128x256x128/64x256 256x128x128/128x128 128x192x128/64x192 128x128x128/64x128 192x128x128/64x128 256x192x128/128x192
    64x256x128/64x256";
/// Blocks, and rows and columns of an instruction.
const TCGEN05: &str = "
    128x256x128/128x256 128x256x128/256x256 256x128x128/128x128 256x128x128/256x128 256x256x128/128x256
    256x256x128/256x256 128x192x128/128x192 256x192x128/128x192 128x128x128/128x128 128x64x128/128x64";
/// Rows and columns of blocks and warps. Those that read the least shared memory for each multiplication come first.
const MMA: &str = "
    256x256/128x64 192x256/96x64 128x256/64x64 256x128/64x64 160x256/80x64 128x128/64x64 128x128/64x32 64x128/32x64
    64x64/32x32";

/// All tiles that are worth a try, those first that are usually fast.
fn candidates(variant: &Variant, arch: Arch) -> Vec<Tiles> {
    let mut all = vec![Tiles::usual(variant)];
    let of = |text: String| text.parse::<Tiles>().expect("of the form");
    match variant.family() {
        Family::Wgmma | Family::Tcgen05 => {
            let sizes = match variant.family() {
                Family::Tcgen05 => TCGEN05,
                _ => WGMMA,
            };
            for sizes in sizes.split_whitespace() {
                for end in ["8/2", "16/2", "8", "16", "4/2"] {
                    // The most stages that fit, and one fewer.
                    let stages = (2..=8).rev();
                    let stages = stages.map(|stages| of(format!("{sizes}/{stages}/{end}")));
                    let fit = stages.filter(|tiles| tiles.check(variant, arch).is_ok());
                    all.extend(fit.take(2));
                }
            }
        }
        Family::Mma => {
            for bulk in ["/bulk", ""] {
                for (block, warp) in MMA.split_whitespace().filter_map(|it| it.split_once('/')) {
                    for (block_k, stages) in [(128, 4), (128, 3), (64, 6), (64, 4), (64, 3)] {
                        let text = format!("{block}x{block_k}/{warp}/{stages}/8{bulk}");
                        all.push(of(text));
                    }
                }
            }
        }
    }
    let mut seen: Vec<Tiles> = Vec::new();
    for tiles in all {
        if tiles.check(variant, arch).is_ok() && !seen.contains(&tiles) {
            seen.push(tiles);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use mma_explorer::variants;

    use super::*;

    #[test]
    fn a_search_ends_without_gain() {
        let mut search = Search::new(2);
        assert_eq!(search.limit(), f64::INFINITY);
        for seconds in [Some(2.0), Some(1.0), None, Some(0.98)] {
            search.note(seconds);
            assert!(!search.is_over());
        }
        assert!((search.limit() - 1.47).abs() < 1e-9);
        // Less than a percent is no gain.
        search.note(Some(0.975));
        search.note(Some(1.2));
        assert!(search.is_over());
    }

    #[test]
    fn candidates_are_many_distinct_and_fit() {
        for (name, arch) in [
            ("wgmma.m64n256k16.f32.f16.f16", "90a"),
            ("mma.m16n8k16.f32.f16.f16", "90a"),
            ("tcgen05.m128n256k16.f16.f32.f16.f16", "100a"),
            ("tcgen05.m128n256k64.mxf4nvf4.f32.e2m1.e2m1.ue4m3", "103a"),
        ] {
            let arch: Arch = arch.parse().unwrap();
            let variant = variants::find(name).unwrap();
            let all = candidates(&variant, arch);
            assert!(all.len() > 30, "{name}: {}", all.len());
            assert_eq!(all[0], Tiles::usual(&variant));
            for (i, tiles) in all.iter().enumerate() {
                assert!(!all[..i].contains(tiles) && tiles.check(&variant, arch).is_ok());
            }
        }
    }
}
