//! Global loads: every one reads its own width and nothing more.

use super::trial::{ALL, Kernels, noise};

crate::trials! {
    simulator: widths;
}

const LOADS: [(&str, usize, &str); 7] = [
    (
        "ld_global_nc_no_allocate_128",
        16,
        "ld.global.nc.L1::no_allocate.L2::256B.v4.u32",
    ),
    (
        "ld_global_nc_no_allocate_64",
        8,
        "ld.global.nc.L1::no_allocate.L2::256B.v2.u32",
    ),
    ("ld_global_128", 16, "ld.global.v4.u32"),
    ("ld_global_64", 8, "ld.global.v2.u32"),
    ("ld_global_nc_16", 2, "ld.global.nc.u16"),
    ("ld_global_nc_8", 1, "ld.global.nc.u8"),
    ("ld_global_8", 1, "ld.global.u8"),
];
const THREADS: usize = 64;

fn widths() {
    for arch in ALL {
        let kernels = Kernels::new("loads", arch);
        for (name, width, instruction) in LOADS {
            let data = noise((THREADS + 1) * width, 1);
            let trial = |offset: usize| {
                kernels
                    .trial(name, [1, 1, 1], [THREADS as u32, 1, 1])
                    .input(&data)
                    .output(THREADS * width)
                    .words(&[offset as u32])
            };
            // To the last byte, and an element past it.
            trial(0).gives(&data[..THREADS * width]);
            trial(width).gives(&data[width..]);
            trial(2 * width).is_refused(&["outside"]);
            if width > 1 {
                trial(width / 2).is_refused(&["multiple"]);
            }
            // The simulator does not act on the instruction's modifiers, so the text must have them.
            let body = body(&kernels.ptx, name);
            assert!(body.contains(instruction), "{arch}: {body}");
        }
    }
}

/// The text of an entry.
fn body<'a>(ptx: &'a str, kernel: &str) -> &'a str {
    let entry = ptx.split(".entry ").find(|e| e.starts_with(kernel));
    entry.expect(kernel)
}
