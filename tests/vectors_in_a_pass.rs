//! Numbers of vectors that kernels take in a pass, as docs/using.md gives them. README and questions.md refer to that
//! page.

use std::fs;
use std::path::Path;

use nvfp4_gemv::kernel::Job;
use nvfp4_gemv::{Activation, Dims, Gpu, Kernel, Operands, ScaleLayout, Shape};

/// The most of any config that is worth measuring, for a problem that suits all kernels.
fn most(kernel: Kernel, activation: Activation) -> Option<u32> {
    let shape = Shape::new(Dims {
        m: 4096,
        n: 128,
        k: 4096,
        l: 1,
    })
    .unwrap();
    let operands = Operands::new(activation, ScaleLayout::Tiled128x4).with_workspace(u64::MAX);
    let gpus = [(9, 0), (10, 0), (12, 0)];
    let gpus = gpus.map(|of| Gpu::of_compute_capability(of, Gpu::DEFAULT_IMAGES));
    let configs = gpus.iter().filter_map(|gpu| {
        let job = Job::new(&shape, &operands, gpu);
        let mut all = kernel.candidates(&job);
        all.extend(kernel.default_config(&job));
        all.iter().map(|config| config.pass_vectors()).max()
    });
    configs.max()
}

#[test]
fn the_table_says_what_kernels_take() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/using.md");
    let text = fs::read_to_string(file).unwrap();
    let (_, section) = text.split_once("\n## Vectors in a pass\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let mut rows = section.lines().filter(|line| line.starts_with('|'));
    let cells = |row: &str| -> Vec<String> {
        let cells = row.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().replace('`', "")).collect()
    };
    let activations: Vec<Activation> = cells(rows.next().unwrap())[1..]
        .iter()
        .map(|name| Activation::from_name(&name.to_lowercase()).unwrap())
        .collect();
    assert_eq!(activations.len(), Activation::ALL.len());
    let mut kernels = Vec::new();
    for row in rows.skip(1).map(cells) {
        let kernel = Kernel::from_name(&row[0]).unwrap();
        for (&activation, said) in activations.iter().zip(&row[1..]) {
            let takes = most(kernel, activation).map_or("-".into(), |most| most.to_string());
            assert_eq!(*said, takes, "{kernel} with {activation} vectors");
        }
        kernels.push(kernel);
    }
    assert_eq!(kernels.len(), Kernel::ALL.len());
}
