//! The memory that a checkpoint of many tensors takes, of which the largest known model has about 370,000. Time is
//! not looked at.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use nvfp4_gemv::checkpoint::{Checkpoint, INDEX_FILE, QUANT_CONFIG_FILE};
use nvfp4_gemv::file::READ_UP_TO;
use serde_json::json;

/// Counts what is allocated, and the most that was at a time.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: allocations are the system's own, whose contract is this trait's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const SHARDS: usize = 16;
const LAYERS: usize = 4;
const EXPERTS: usize = 768;

/// Headers of experts, with data that take no room on the disk, an index and a config. Returns how many tensors.
fn model(directory: &Path) -> usize {
    let mut map = BTreeMap::new();
    let of_shard = EXPERTS / SHARDS;
    for shard in 0..SHARDS {
        let file = format!("model-{:05}-of-{SHARDS:05}.safetensors", shard + 1);
        let (mut header, mut end) = (String::from("{"), 0);
        let experts =
            (0..LAYERS).flat_map(|l| (0..of_shard).map(move |e| (l, shard * of_shard + e)));
        for (layer, expert) in experts {
            for part in ["gate_proj", "up_proj", "down_proj"] {
                for (suffix, dtype, shape, bytes) in [
                    ("input_scale", "F32", "[]", 4),
                    ("weight", "U8", "[8,8]", 64),
                    ("weight_scale", "F8_E4M3", "[8,1]", 8),
                    ("weight_scale_2", "F32", "[]", 4),
                ] {
                    let name = format!("model.layers.{layer}.mlp.experts.{expert}.{part}.{suffix}");
                    let (comma, from) = (if end == 0 { "" } else { "," }, end);
                    end += bytes;
                    write!(
                        header,
                        r#"{comma}"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{end}]}}"#
                    )
                    .unwrap();
                    map.insert(name, file.clone());
                }
            }
        }
        header.push('}');
        let mut out = File::create(directory.join(&file)).unwrap();
        out.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        out.write_all(header.as_bytes()).unwrap();
        let length = (8 + header.len() + end) as u64;
        // Smaller files are read, and their bytes are counted.
        assert!(length <= READ_UP_TO);
        out.set_len(length).unwrap();
    }
    fs::write(
        directory.join(INDEX_FILE),
        json!({ "weight_map": map }).to_string(),
    )
    .unwrap();
    let excluded: Vec<String> = (0..500)
        .map(|i| format!("model.layers.{i}.self_attn*"))
        .collect();
    let config = json!({ "quantization": { "quant_algo": "NVFP4", "exclude_modules": excluded } });
    fs::write(directory.join(QUANT_CONFIG_FILE), config.to_string()).unwrap();
    map.len()
}

#[test]
fn a_tensor_takes_few_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let tensors = model(directory.path());
    // Their data, which are not mapped in files so small, are not the tensors' own.
    let data = tensors / 4 * (4 + 64 + 8 + 4);
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let of_each = |bytes: usize| (bytes - before).saturating_sub(data) / tensors;
    let [most, now] = [&MOST, &NOW].map(|bytes| of_each(bytes.load(Ordering::Relaxed)));
    println!("{tensors} tensors: {now} bytes each, at most {most}");
    // 200 MB for 370,000 are 540.
    assert!(most < 540 && now < 400, "{most} {now}");
    MOST.store(NOW.load(Ordering::Relaxed), Ordering::Relaxed);
    let modules = checkpoint.modules();
    assert_eq!(modules.len(), tensors / 4);
    assert!(modules.iter().all(|module| module.kind().name() == "NVFP4"));
    let listed = of_each(MOST.load(Ordering::Relaxed));
    println!("with its modules at most {listed}");
    assert!(listed < 540, "{listed}");
}
