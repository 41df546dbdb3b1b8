//! The block-scaled `mma.sync` of m16n8k64 against a description of its fragments that is not ours: CUTLASS's layouts.
//! They are `SM120_16x8x64_TN_VS` (`include/cute/atom/mma_traits_sm120.hpp`), and `SM80_16x8_Row` for C and D. There a
//! layout is two lists, shape and stride. A lane's v-th value is found by counting lane and v in digits of the shape,
//! and adding up digit times stride.

#[path = "common/float.rs"]
mod float;

use float::float;
use ptx_sim::{Launch, Module, Options, Sim};

/// Digits and strides of the lane, then of the value.
struct Layout {
    lane: &'static [(usize, usize)],
    value: &'static [(usize, usize)],
}

impl Layout {
    /// Position of a lane's value in its matrix, whose columns are K (of D: N) and follow each other.
    fn at(&self, lane: usize, value: usize) -> usize {
        let offset = |mut index: usize, digits: &[(usize, usize)]| -> usize {
            let mut sum = 0;
            for &(size, stride) in digits {
                sum += index % size * stride;
                index /= size;
            }
            assert_eq!(index, 0, "more values than the layout has");
            sum
        };
        offset(lane, self.lane) + offset(value, self.value)
    }
}

const A: Layout = Layout {
    lane: &[(4, 128), (8, 1)],
    value: &[(8, 16), (2, 8), (2, 512)],
};
const B: Layout = Layout {
    lane: &[(4, 64), (8, 1)],
    value: &[(8, 8), (2, 256)],
};
/// A value of scales is an element of K: 16 that follow each other have the same.
const A_SCALES: Layout = Layout {
    lane: &[(2, 8), (2, 0), (8, 1)],
    value: &[(64, 16)],
};
const B_SCALES: Layout = Layout {
    lane: &[(4, 0), (8, 1)],
    value: &[(64, 8)],
};
const D: Layout = Layout {
    lane: &[(4, 32), (8, 1)],
    value: &[(2, 16), (2, 8)],
};

const ROWS: usize = 16;
const COLUMNS: usize = 8;
const K: usize = 64;

/// One instruction on these words of each lane: four of A, two of B, scales of A and B.
fn run(words: &[u32], selectors: [usize; 2]) -> Vec<f32> {
    let [of_a, of_b] = selectors;
    let ptx = format!(
        ".version 9.0\n.target sm_120a\n.address_size 64\n.visible .entry k(.param .u64 p0, .param .u64 p1) {{\n\
         .reg .b32 %r<16>; .reg .b32 %t; .reg .b64 %d<3>;\nmov.u32 %t, %tid.x;\n\
         ld.param.u64 %d0, [p0]; mad.wide.u32 %d0, %t, 32, %d0;\n\
         ld.param.u64 %d1, [p1]; mad.wide.u32 %d1, %t, 16, %d1;\n\
         ld.global.v4.u32 {{%r0, %r1, %r2, %r3}}, [%d0];\n\
         ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%d0+16];\nmov.u32 %r8, 0;\n\
         mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 \
         {{%r9, %r10, %r11, %r12}}, {{%r0, %r1, %r2, %r3}}, {{%r4, %r5}}, {{%r8, %r8, %r8, %r8}}, \
         %r6, {{0, {of_a}}}, %r7, {{0, {of_b}}};\n\
         st.global.v4.u32 [%d1], {{%r9, %r10, %r11, %r12}};\nret;\n}}\n"
    );
    let mut sim = Sim::new(Module::parse(&ptx).unwrap());
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let input = sim.upload("words", &bytes).unwrap();
    let out = sim.alloc("out", 32 * 16).unwrap();
    let launch = Launch::new("k", [1; 3], [32, 1, 1])
        .buffer(input)
        .buffer(out);
    sim.run(&launch, &Options::default()).unwrap();
    sim.words(out).into_iter().map(f32::from_bits).collect()
}

/// Codes at random, and scales of which every product and sum is exact.
#[test]
fn fragments_and_scales_are_where_cutlass_has_them() {
    // 0.5, 0.75, 1, 1.5, 2, 3.
    const SCALES: [u8; 6] = [0x30, 0x34, 0x38, 0x3c, 0x40, 0x44];
    let rng = &mut fastrand::Rng::with_seed(5);
    let mut codes = |n: usize| -> Vec<u8> { (0..n).map(|_| rng.u8(..16)).collect() };
    let (a, b) = (codes(ROWS * K), codes(COLUMNS * K));
    let mut scales = |rows: usize| -> Vec<u8> {
        let of_blocks: Vec<u8> = (0..rows * K / 16).map(|_| SCALES[rng.usize(..6)]).collect();
        (0..rows * K)
            .map(|at| of_blocks[at / rows / 16 * rows + at % rows])
            .collect()
    };
    let (a_scales, b_scales) = (scales(ROWS), scales(COLUMNS));

    let mut words = Vec::new();
    for lane in 0..32 {
        for (layout, matrix, registers) in [(&A, &a, 4), (&B, &b, 2)] {
            for register in 0..registers {
                words.push((0..8).fold(0, |word, i| {
                    word | u32::from(matrix[layout.at(lane, 8 * register + i)]) << (4 * i)
                }));
            }
        }
        for (layout, matrix) in [(&A_SCALES, &a_scales), (&B_SCALES, &b_scales)] {
            let bytes = [0, 1, 2, 3].map(|block| matrix[layout.at(lane, 16 * block)]);
            words.push(u32::from_le_bytes(bytes));
        }
    }
    let product = |row: usize, column: usize| -> f64 {
        let term = |k: usize| {
            let (x, y) = (row + ROWS * k, column + COLUMNS * k);
            let of_a = float(a[x], 2, 1) * float(a_scales[x], 4, 3);
            of_a * float(b[y], 2, 1) * float(b_scales[y], 4, 3)
        };
        (0..K).map(term).sum()
    };
    // All lanes that may be asked for a row's or a column's scales have them.
    for selectors in [[0, 0], [1, 0], [0, 1], [1, 2], [0, 3]] {
        let d = run(&words, selectors);
        for lane in 0..32 {
            for value in 0..4 {
                let at = D.at(lane, value);
                let (row, column) = (at % ROWS, at / ROWS);
                let found = f64::from(d[4 * lane + value]);
                assert_eq!(
                    found,
                    product(row, column),
                    "{selectors:?} ({row}, {column})"
                );
            }
        }
    }
}

/// Each lane's values are elements of their own, and all lanes together have every element.
#[test]
fn layouts_have_every_element_once() {
    for (layout, values, elements) in [(&A, 32, ROWS * K), (&B, 16, COLUMNS * K), (&D, 4, 128)] {
        let mut all: Vec<usize> = (0..32)
            .flat_map(|lane| (0..values).map(move |value| layout.at(lane, value)))
            .collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..elements));
    }
}
