//! A GPU against the predicted bits. A prediction that is refuted is news of the model, and no failure of a kernel: the
//! trial says so and ends well. `NVFP4_GEMV_PREDICTED=FILE` keeps the verdicts, as JSON.

use std::sync::Arc;

use nvfp4_gemv::kernel::Kernel;
use nvfp4_gemv_trials::Trial;
use serde_json::json;

use super::{ROWS, committed, hashes, operands};
use crate::support::gpu::{Gpu, OnDevice, kernel_trial};

pub(crate) fn trials() -> Vec<Trial> {
    let of = |kernel| kernel_trial(kernel, "predicted_bits", move |gpu| compare(kernel, gpu));
    [Kernel::Tcgen05, Kernel::MmaFp4].map(of).into()
}

fn compare(kernel: Kernel, gpu: &Gpu) {
    let mut verdicts = Vec::new();
    for prediction in committed(kernel) {
        let (m, k, l) = (prediction.m, prediction.k, prediction.l);
        let operands = Arc::new(operands((m, k, l), prediction.data));
        assert_eq!(operands.hash(), prediction.operands, "another problem");
        let mut device = OnDevice::new(gpu, operands);
        let config = prediction.config;
        let (verdict, wrong) = match device.job(false, |job| config.check(job)) {
            // A smaller GPU: its sums have another order.
            Err(why) => (format!("not asked: {why}"), 0),
            Ok(()) => {
                let y: Vec<f32> = device
                    .run(config, false)
                    .chunks_exact(4)
                    .map(|y| f32::from_le_bytes([y[0], y[1], y[2], y[3]]))
                    .collect();
                let given = hashes(&y, m);
                assert_eq!(given.len(), prediction.rows.len());
                let pairs = given.iter().zip(&prediction.rows);
                match pairs
                    .filter(|(given, predicted)| given != predicted)
                    .count()
                {
                    0 => ("confirmed".into(), 0),
                    wrong => ("refuted".into(), wrong),
                }
            }
        };
        let groups = prediction.rows.len();
        let data = prediction.data;
        println!(
            "{kernel} {m}x{k}, {l} batches, {data:?}: {verdict}: {wrong} of {groups} groups of {ROWS} rows differ"
        );
        verdicts.push(json!({
            "kernel": kernel.to_string(), "m": m, "k": k, "l": l, "data": prediction.data, "config": config,
            "verdict": verdict, "groups": groups, "groups_that_differ": wrong,
        }));
    }
    if let Some(file) = std::env::var_os("NVFP4_GEMV_PREDICTED") {
        let text = serde_json::to_string_pretty(&verdicts).expect("JSON");
        std::fs::write(&file, text).expect("a file that can be written");
    }
}
