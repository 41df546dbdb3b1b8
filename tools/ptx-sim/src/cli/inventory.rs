//! `ptx-sim inventory`.

use std::path::PathBuf;

use ptx_sim::{Module, SimError, files};

#[derive(clap::Args)]
pub(super) struct Inventory {
    /// The PTX file.
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn command(i: &Inventory) -> Result<(), SimError> {
    let module = Module::parse(&files::read_text(&i.file)?)?;
    let list = ptx_sim::inventory::inventory(&module);
    if i.json {
        super::print_json(&list);
        return Ok(());
    }
    for e in &list.opcodes {
        match &e.unmodelled {
            None => outln!("{:7}  {}", e.count, e.opcode),
            Some(why) => outln!(
                "{:7}  {}  NOT EXECUTED (line {}): {why}",
                e.count,
                e.opcode,
                e.first_line
            ),
        }
    }
    let missing = list.opcodes.iter();
    let missing = missing.filter(|e| e.unmodelled.is_some()).count();
    for p in &list.problems {
        outln!("problem: {p}");
    }
    outln!(
        "{} opcodes, {missing} of them not executed",
        list.opcodes.len()
    );
    Ok(())
}
