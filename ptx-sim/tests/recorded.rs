//! Replays what an H200 did: the same PTX, the same inputs, the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};
use ptx_sim::{Buffer, HazardChecks, Launch, Module, Options, Sim, SimError, Uninitialised};
use safetensors::SafeTensors;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    name: String,
    ptx: String,
    #[serde(default)]
    entry: String,
    #[serde(default)]
    grid: [u32; 3],
    #[serde(default)]
    block: [u32; 3],
    cluster: Option<[u32; 3]>,
    #[serde(default)]
    smem: u32,
    #[serde(default)]
    buffers: Vec<Contents>,
    #[serde(default)]
    params: Vec<Param>,
    #[serde(default)]
    tags: Vec<String>,
    status: String,
    #[serde(default)]
    encode_only: bool,
    encode_result: Option<u32>,
}

#[derive(Deserialize)]
struct Contents {
    name: String,
    bytes: usize,
    init: Option<String>,
    fill: Option<u8>,
    out: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Param {
    Buffer(usize),
    U32(u32),
    TensorMap(Map),
}

/// Arguments of `cuTensorMapEncodeTiled`, enumerators as numbers.
#[derive(Deserialize)]
struct Map {
    buffer: usize,
    offset: u64,
    #[serde(rename = "type")]
    data_type: u32,
    rank: usize,
    dims: Vec<u64>,
    strides: Vec<u64>,
    #[serde(rename = "box")]
    box_dim: Vec<u32>,
    elem_strides: Vec<u32>,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    oob_fill: u32,
}

impl Map {
    /// The map of a tensor in a buffer at `base`.
    fn encode(&self, base: u64) -> Result<TensorMap, String> {
        let named = |e: &str| format!("{e} is not known");
        TensorMap::encode(TensorMapArgs {
            data_type: DataType::from_driver(self.data_type).ok_or(named("type"))?,
            global_address: base + self.offset,
            global_dim: self.dims[..self.rank].to_vec(),
            global_strides: self.strides.clone(),
            box_dim: self.box_dim.clone(),
            element_strides: self.elem_strides.clone(),
            interleave: Interleave::from_driver(self.interleave).ok_or(named("interleave"))?,
            swizzle: Swizzle::from_driver(self.swizzle).ok_or(named("swizzle"))?,
            l2_promotion: L2Promotion::from_driver(self.l2_promotion).ok_or(named("promotion"))?,
            oob_fill: OobFill::from_driver(self.oob_fill).ok_or(named("fill"))?,
        })
        .map_err(|e| e.to_string())
    }
}

/// How a case ended.
enum End {
    Same,
    Unmodelled(String),
    Different(String),
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("probes")
}

/// Cases that are known to end otherwise: `topic case` or `topic prefix*`, and why.
fn exceptions(topic: &str) -> Vec<(String, String)> {
    let text =
        std::fs::read_to_string(folder().join("exceptions.txt")).expect("list of exceptions");
    let mut list = Vec::new();
    for line in text
        .lines()
        .filter(|l| !l.trim().is_empty() && !l.starts_with('#'))
    {
        let mut words = line.splitn(3, ' ');
        let (t, case, why) = (
            words.next().unwrap_or(""),
            words.next().unwrap_or(""),
            words.next().unwrap_or(""),
        );
        assert!(!why.is_empty(), "no reason: {line}");
        if t == topic {
            list.push((case.to_string(), why.to_string()));
        }
    }
    list
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(p) => name.starts_with(p),
        None => pattern == name,
    }
}

fn launch(
    case: &Case,
    module: &Module,
    data: &SafeTensors<'_>,
) -> Result<(Sim, Vec<Buffer>), SimError> {
    let mut sim = Sim::new(module.clone());
    let mut buffers = Vec::new();
    for b in &case.buffers {
        let bytes = match &b.init {
            Some(t) => data.tensor(t).expect("input").data()[..b.bytes].to_vec(),
            None => vec![b.fill.unwrap_or(0); b.bytes],
        };
        buffers.push(sim.upload(&b.name, &bytes)?);
    }
    let mut l = Launch::new(&case.entry, case.grid, case.block);
    l.cluster = case.cluster;
    l.shared = case.smem;
    for p in &case.params {
        l = match p {
            Param::Buffer(i) => l.buffer(buffers[*i]),
            Param::U32(v) => l.u32(*v),
            Param::TensorMap(m) => l.tensor_map(
                m.encode(buffers[m.buffer].address)
                    .map_err(SimError::Launch)?,
            ),
        };
    }
    let options = Options {
        uninitialised: Uninitialised::Warn,
        timeouts: 1 << 21,
        // Some of the probes read what they have not waited for, to see what comes.
        hazards: HazardChecks::Off,
        ..Options::default()
    };
    sim.run(&l, &options)?;
    Ok((sim, buffers))
}

/// Bytes that a replay need not give: words that count what the machine reserves.
fn compare(case: &Case, name: &str, got: &[u8], want: &[u8]) -> Result<(), String> {
    let has = |t: &str| case.tags.iter().any(|x| x == t);
    if has("smem_size") {
        let words = |b: &[u8]| -> Vec<u32> {
            b.chunks_exact(4)
                .map(|c| u32::from_le_bytes(c.try_into().unwrap_or_default()))
                .collect()
        };
        let (g, w) = (words(got), words(want));
        let stride = w.len()
            / (case.grid.iter().product::<u32>() * case.block.iter().product::<u32>()).max(1)
                as usize;
        for i in (0..w.len()).filter(|i| stride == 0 || !matches!(i % stride, 18 | 19)) {
            if g[i] != w[i] {
                return Err(format!(
                    "{name}: word {i} is {:08x}, was {:08x}",
                    g[i], w[i]
                ));
            }
        }
        return Ok(());
    }
    match got.iter().zip(want).position(|(g, w)| g != w) {
        None => Ok(()),
        Some(i) => {
            let from = i / 8 * 8;
            let to = (from + 8).min(got.len());
            let bad = got.iter().zip(want).filter(|(g, w)| g != w).count();
            Err(format!(
                "{name}: {bad} of {} bytes differ, first at {i}: {:02x?}, was {:02x?}",
                got.len(),
                &got[from..to],
                &want[from..to]
            ))
        }
    }
}

/// Whether the driver and the model agree on the arguments of a tensor map.
fn encodes(case: &Case, result: u32) -> End {
    let base = 1 << 20;
    for p in &case.params {
        let Param::TensorMap(m) = p else { continue };
        let map = m.encode(base);
        let map = map.and_then(|map| map.check_hopper().map_err(|e| e.to_string()));
        return match (map, result) {
            (Ok(_), 0) | (Err(_), 1) => End::Same,
            (Ok(_), r) => End::Different(format!("accepted; the driver returned {r}")),
            (Err(e), _) => End::Different(format!("refused, the driver accepted it: {e}")),
        };
    }
    End::Different("there is no tensor map".into())
}

/// A kernel that the GPU ended with an error must not run here either.
fn refuses(case: &Case, module: &Module, data: &SafeTensors<'_>) -> End {
    match launch(case, module, data) {
        Err(SimError::Launch(e)) => End::Different(format!("not launched: {e}")),
        Err(SimError::Decode(e)) => End::Unmodelled(e.to_string()),
        Err(SimError::Unmodelled { reason, .. }) => End::Unmodelled(reason),
        Err(e) => {
            // Only tensor copies were recorded so: their coordinates and shared addresses.
            let reason = match case.status.ends_with("MISALIGNED_ADDRESS") {
                true => "aligned",
                false => "coordinate",
            };
            match e.to_string() {
                e if e.contains(reason) => End::Same,
                e => End::Different(format!("refused for another reason: {e}")),
            }
        }
        Ok(_) => End::Different(format!("ran to its end; {}", case.status)),
    }
}

fn replay(case: &Case, module: &Module, data: &SafeTensors<'_>) -> End {
    let (sim, buffers) = match launch(case, module, data) {
        Ok(x) => x,
        Err(SimError::Unmodelled { text, reason, .. }) => {
            return End::Unmodelled(format!("`{text}`: {reason}"));
        }
        Err(SimError::Decode(e)) => return End::Unmodelled(e.to_string()),
        Err(e) => return End::Different(e.to_string()),
    };
    for (b, at) in case.buffers.iter().zip(buffers) {
        if let Some(out) = &b.out {
            let want = data.tensor(out).expect("output");
            if let Err(e) = compare(case, &b.name, sim.download(at), want.data()) {
                return End::Different(e);
            }
        }
    }
    End::Same
}

fn topic(topic: &str) {
    let path = folder()
        .join("recorded")
        .join(format!("{topic}.safetensors"));
    let bytes = std::fs::read(path).expect("recording");
    let data = SafeTensors::deserialize(&bytes).expect("safetensors");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("header");
    let meta = header.metadata().as_ref().expect("metadata");
    let cases: Vec<Case> = serde_json::from_str(&meta["cases"]).expect("cases");
    let listed = exceptions(topic);
    let modules: BTreeMap<&str, Module> = cases
        .iter()
        .filter(|c| !c.encode_only)
        .map(|c| c.ptx.as_str())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .map(|name| {
            let text = std::fs::read_to_string(folder().join("ptx").join(name)).expect("PTX");
            (name, Module::parse(&text).expect("PTX parses"))
        })
        .collect();
    let (mut same, mut maps, mut refused) = (0, 0, 0);
    let (mut unmodelled, mut different) = (0, 0);
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for case in &cases {
        let known = listed.iter().find(|(p, _)| matches(p, &case.name));
        let (end, count) = match case.encode_result {
            Some(r) if case.encode_only || r != 0 => (encodes(case, r), &mut maps),
            _ if case.status == "ok" => {
                (replay(case, &modules[case.ptx.as_str()], &data), &mut same)
            }
            _ => (
                refuses(case, &modules[case.ptx.as_str()], &data),
                &mut refused,
            ),
        };
        match (&end, known) {
            (End::Same, Some((p, _))) => {
                wrong.push(format!("{}: listed as {p}, and now the same", case.name))
            }
            (_, Some((p, _))) => {
                used.insert(p.clone());
            }
            (End::Same, None) => {}
            (End::Unmodelled(why), None) => {
                wrong.push(format!("{}: not modelled: {why}", case.name))
            }
            (End::Different(why), None) => wrong.push(format!("{}: {why}", case.name)),
        }
        match end {
            End::Same => *count += 1,
            End::Unmodelled(_) => unmodelled += 1,
            End::Different(_) => different += 1,
        }
    }
    for (p, _) in listed.iter().filter(|(p, _)| !used.contains(p)) {
        wrong.push(format!("{p}: listed, but no such case differs"));
    }
    println!(
        "{topic}: {same} the same, {refused} refused on both sides, {maps} tensor maps judged \
         alike, {different} different, {unmodelled} not modelled"
    );
    assert!(
        wrong.is_empty(),
        "{topic}: {} of {} cases:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}

#[test]
fn conversions() {
    topic("cvt");
}

#[test]
fn floating_point() {
    topic("arith");
}

#[test]
fn integers() {
    topic("integer");
}

#[test]
fn warps() {
    topic("warp");
}

#[test]
fn asynchronous() {
    topic("async");
}

#[test]
fn matrices() {
    topic("matrix");
}

#[test]
fn tensor_copies() {
    topic("tma");
}

#[test]
fn warpgroup_matrices() {
    topic("wgmma");
}
