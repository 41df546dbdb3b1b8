use anyhow::Result;
use mma_explorer::arch::{self, Arch};
use mma_explorer::variants::{Emission, Variant};
use serde_json::json;

use super::{Filter, Report, table, variant_json};

/// List variants: for an architecture, with what each becomes there or why it is not there; else for all of them
///
/// Knows this by a table, and compiles nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    filter: Filter,
    /// The architecture, such as 80, 90a, 100f
    #[arg(long)]
    arch: Option<Arch>,
}

pub(crate) fn run(args: &Args) -> Result<Report> {
    let variants = args.filter.select()?;
    let json = variants.iter().map(|of| variant_json(of, args.arch));
    let json: Vec<_> = json.collect();
    let text = match args.arch {
        Some(arch) => of_arch(&variants, arch),
        None => of_all(&variants),
    };
    Ok(Report::new(text, json!({ "variants": json })))
}

fn of_arch(variants: &[Variant], arch: Arch) -> String {
    let mut there = Vec::new();
    let mut missing = Vec::new();
    for variant in variants {
        match (variant.machine(arch), variant.missing(arch)) {
            (Some(machine), _) => there.push(vec![
                variant.name(),
                machine.opcode.into(),
                machine.emission.name().into(),
            ]),
            (None, why) => missing.push(vec![variant.name(), why.unwrap_or_default()]),
        }
    }
    let (has, all) = (there.len(), variants.len());
    let mut text = format!("sm_{arch}: {has} of {all} variants\n\n");
    if !there.is_empty() {
        text += &table(["variant", "opcode", "machine code"], &there);
    }
    if !missing.is_empty() {
        text += &format!("\nNot there:\n\n{}", table(["variant", "why"], &missing));
    }
    text
}

fn of_all(variants: &[Variant]) -> String {
    let archs = arch::ALL.iter().filter_map(|name| name.parse().ok());
    let archs: Vec<Arch> = archs.collect();
    let head = archs.iter().map(|arch| format!("sm_{arch}"));
    let head = std::iter::once("variant".to_owned()).chain(head);
    let cell = |variant: &Variant, arch: &Arch| match variant.machine(*arch) {
        None => "-".to_string(),
        Some(machine) => {
            let mark = match machine.emission {
                Emission::Native => "",
                Emission::Widened => " w",
                Emission::Emulated => " e",
            };
            format!("{}{mark}", machine.opcode)
        }
    };
    let row = |variant: &Variant| {
        let name = std::iter::once(variant.name());
        name.chain(archs.iter().map(|arch| cell(variant, arch)))
            .collect()
    };
    let rows: Vec<Vec<String>> = variants.iter().map(row).collect();
    format!(
        "{}\ne: emulated by several instructions; w: widened, a part of a larger instruction; -: not there, and \
         `list --arch A` says why\n",
        table(head, &rows)
    )
}
