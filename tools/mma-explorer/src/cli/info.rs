use anyhow::Result;
use mma_explorer::cache::Cache;
use mma_explorer::machine_code;
use mma_explorer::nvrtc;
use nvfp4_gemv_files::printable;
use serde_json::json;

use super::Report;

/// Say which NVRTC, disassembler and cache are used, and where they are
///
/// Fails where NVRTC is missing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args, cache: &Cache) -> Result<Report> {
    let disassembler = machine_code::disassembler();
    let nvrtc = nvrtc::get()?;
    let archs: Vec<String> = nvrtc.architectures().iter().map(u32::to_string).collect();
    let tool = match &disassembler {
        Ok(path) => printable::path(path).to_string(),
        Err(missing) => format!("{missing}. {}", missing.hint().unwrap_or_default()),
    };
    let folder = cache.folder().map(|folder| folder.to_string_lossy());
    let shown = match &folder {
        Some(folder) => printable::text(folder).to_string(),
        None => "none".into(),
    };
    let shown = match cache.refused() {
        Some(why) => format!("none: {why}: {shown}"),
        None => shown,
    };
    let text = format!(
        "NVRTC         {} ({})\n              {}\narchitectures {}\ndisassembler  {tool}\ncache         {shown}\n",
        nvrtc.version(),
        nvrtc.build(),
        nvrtc.place(),
        archs.join(" "),
    );
    let json = json!({
        "nvrtc": { "version": nvrtc.version(), "build": nvrtc.build(), "place": nvrtc.place().to_string() },
        "architectures": nvrtc.architectures(),
        "disassembler": disassembler.ok().map(|path| path.to_string_lossy().into_owned()),
        "cache": folder,
        "cache_refused": cache.refused(),
    });
    Ok(Report::new(text, json))
}
