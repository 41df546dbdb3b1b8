//! Replays: the same PTX, the same inputs, the same bytes.

use std::collections::BTreeMap;

use super::{Case, Outputs, Param, Recording, RecordingError};
use crate::{Buffer, HazardChecks, Launch, Module, Options, Sim, SimError, SumRule, Uninitialised};

/// Result of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The replay gave the recorded bytes, or a refusal where the recording has one.
    Same,
    /// Something in it is not modelled.
    Unmodelled(String),
    /// The simulator does something else.
    Different(String),
}

/// The error that ended a launch, or the bytes of each buffer that is an output.
type Ran = Result<Vec<(String, Vec<u8>)>, SimError>;

/// A launch as the case describes it. A kernel that depends on another one runs behind it.
fn run(
    case: &Case,
    module: &Module,
    data: &Recording<'_>,
    sums: SumRule,
) -> Result<Ran, RecordingError> {
    let mut sim = Sim::new(module.clone());
    let mut buffers = Vec::new();
    for b in &case.buffers {
        let whole = match &b.init {
            Some(name) => data.tensor(name)?.get(..b.bytes).map(<[u8]>::to_vec),
            None if b.bytes as u64 <= sim.memory_limit() => {
                Some(vec![b.fill.unwrap_or(0); b.bytes])
            }
            None => None,
        };
        let bytes =
            whole.ok_or_else(|| case.wrong(format!("no {} bytes of {}", b.bytes, b.name)))?;
        match sim.upload(&b.name, &bytes) {
            Ok(buffer) => buffers.push(buffer),
            Err(why) => return Ok(Err(why)),
        }
    }
    for entry in case.first.iter().chain([&case.entry]) {
        let launch = match launch(case, entry, &buffers)? {
            Ok(launch) => launch,
            Err(why) => return Ok(Err(why)),
        };
        let options = Options {
            uninitialised: Uninitialised::Warn,
            timeouts: 1 << 21,
            // Some of the probes read bytes that they have not waited for, to see the value.
            hazards: HazardChecks::Off,
            sums,
            ..Options::default()
        };
        if let Err(why) = sim.run(&launch, &options) {
            return Ok(Err(why));
        }
    }
    let outputs = case.buffers.iter().zip(buffers);
    Ok(Ok(outputs
        .filter_map(|(b, at)| Some((b.out.clone()?, sim.download(at).to_vec())))
        .collect()))
}

fn launch(
    case: &Case,
    entry: &str,
    buffers: &[Buffer],
) -> Result<Result<Launch, SimError>, RecordingError> {
    let at = |i: usize| {
        let buffer = buffers.get(i).copied();
        buffer.ok_or_else(|| case.wrong(format!("there is no buffer {i}")))
    };
    let mut l = Launch::new(entry, case.grid, case.block);
    l.cluster = case.cluster;
    l.shared = case.smem;
    for p in &case.params {
        l = match p {
            Param::Buffer(i) => l.buffer(at(*i)?),
            Param::U32(v) => l.u32(*v),
            Param::TensorMap(m) => match m.encode(at(m.buffer)?.address) {
                Ok(map) => l.tensor_map(map),
                Err(why) => return Ok(Err(SimError::Launch(why))),
            },
        };
    }
    Ok(Ok(l))
}

impl Case {
    fn wrong(&self, what: String) -> RecordingError {
        RecordingError::Case {
            case: self.name.clone(),
            what,
        }
    }

    fn tagged(&self, tag: &str) -> bool {
        self.tags.iter().any(|x| x == tag)
    }

    fn module<'m>(
        &self,
        modules: &'m BTreeMap<String, Module>,
    ) -> Result<&'m Module, RecordingError> {
        let module = modules.get(&self.ptx);
        module.ok_or_else(|| self.wrong(format!("there is no {:?}", self.ptx)))
    }

    /// Whether only the encoding of a tensor map was recorded.
    pub fn is_a_map(&self) -> bool {
        self.encode_only || self.encode_result.is_some_and(|result| result != 0)
    }
}

/// Compares what a case wrote with what was recorded.
fn compare(case: &Case, name: &str, got: &[u8], want: &[u8]) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{name}: {} bytes, was {}", got.len(), want.len()));
    }
    // Clocks are the machine's own.
    if case.tagged("times") && name == format!("{}/times", case.name) {
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
fn refuses(case: &Case, ran: Ran) -> End {
    match ran {
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

/// Runs a case in the simulator, where matrix instructions add as `sums` says, and compares with the recording.
pub fn replay(
    case: &Case,
    modules: &BTreeMap<String, Module>,
    data: &Recording<'_>,
    sums: SumRule,
) -> Result<End, RecordingError> {
    if case.is_a_map() {
        return match case.encode_result {
            Some(result) => Ok(encodes(case, result)),
            None => Err(case.wrong("the driver's answer is missing".into())),
        };
    }
    let ran = run(case, case.module(modules)?, data, sums)?;
    if case.status != "ok" {
        return Ok(refuses(case, ran));
    }
    let outputs = match ran {
        Ok(outputs) => outputs,
        Err(SimError::Unmodelled { text, reason, .. }) => {
            return Ok(End::Unmodelled(format!("`{text}`: {reason}")));
        }
        Err(SimError::Decode(e)) => return Ok(End::Unmodelled(e.to_string())),
        Err(e @ SimError::SumRule { .. }) => return Ok(End::Unmodelled(e.to_string())),
        Err(e) => return Ok(End::Different(e.to_string())),
    };
    for (name, got) in outputs {
        if let Err(e) = compare(case, &name, &got, data.tensor(&name)?) {
            return Ok(End::Different(e));
        }
    }
    Ok(End::Same)
}

/// The simulator's result of a case, where matrix instructions add as `sums` says: the tensors of its outputs, or why
/// there are none.
pub fn outputs(
    case: &Case,
    modules: &BTreeMap<String, Module>,
    data: &Recording<'_>,
    sums: SumRule,
) -> Result<Outputs, RecordingError> {
    if case.is_a_map() {
        return Ok(Ok(Vec::new()));
    }
    let ran = run(case, case.module(modules)?, data, sums)?;
    Ok(ran.map_err(|why| why.to_string()))
}
