//! The loops of the kernels: over rows, vectors and steps, for any set of vector instructions.
//!
//! They are generic functions without target features, inlined into the functions of [`family`], which have them.
//! They are plain: a closure would be a function of its own, without the features, and intrinsics would not be inlined
//! into it.

#![allow(clippy::needless_range_loop)] // they index several arrays of registers at once

use std::marker::PhantomData;

use crate::cpu::prepare::{DENSE_STEP, Line, NVFP4_WORDS, Tile, words, words_mut};
use crate::cpu::rows::{
    Decoded, GROUP_ROWS, MAX_VECTORS, Row, Rows, Run, Sums, SumsOfRows, WHOLE_ROWS_UP_TO,
};
use crate::cpu::vector::{Floats, Products, Vector};
use crate::shape::BLOCK;

/// The kernels for one kind of vectors: what the loops do with a step.
///
/// # Safety
/// The functions may only be called on a CPU that has the instructions. What they are given has the step.
pub(super) trait Kernel {
    type Vector: Vector;

    /// Words of a block of a vector.
    const WORDS: usize;
    /// Words of a decoded block of weights.
    const DECODED: usize;
    /// Blocks to a multiple of which vectors and decoded rows are padded.
    const PADDING: usize;

    /// Decoded weights that are multiplied at once.
    type Weights: Copy;
    /// The values of a vector that they are multiplied with.
    type Values;

    /// Adds a step of `R` rows to the lanes of `acc`.
    unsafe fn step<const R: usize, const N: usize, const TAIL: bool>(
        rows: &[Row<'_>; R],
        x: &[*const u32; N],
        step: usize,
        acc: &mut [[Lanes<Self>; N]; R],
    );

    /// Writes a step of decoded weights.
    unsafe fn decode<const TAIL: bool>(row: &Row<'_>, step: usize, out: *mut u32);

    /// Adds products of decoded weights.
    unsafe fn add(w: &Self::Weights, x: &Self::Values, acc: Lanes<Self>) -> Lanes<Self>;
}

/// A register of sums of a [`Kernel`].
type Lanes<K> = <<K as Kernel>::Vector as Vector>::Floats;

/// Multiplies weights while they are in registers: `Family::direct`, for so many rows and vectors.
#[inline(always)]
pub(super) unsafe fn direct<K: Kernel, const R: usize, const N: usize>(
    rows: &Rows<'_>,
    x: &Tile<'_>,
    result: &mut Sums,
) {
    let blocks = [x.blocks(), x.cut()];
    rows.rows
        .iter()
        .for_each(|row| row.assert_blocks(blocks[0]));
    let x = x.vectors::<N>(blocks[0].next_multiple_of(K::PADDING) * K::WORDS);
    // Four rows and four vectors at once would not fit the registers.
    let at_once = match N <= WHOLE_ROWS_UP_TO {
        true => R,
        false => K::Vector::ROWS.min(R),
    };
    for first in (0..R).step_by(at_once) {
        // SAFETY: the lengths were asserted; the caller's CPU has the instructions.
        unsafe {
            match at_once {
                1 => some_rows::<K, 1, N>(rows, first, blocks, &x, result),
                2 => some_rows::<K, 2, N>(rows, first, blocks, &x, result),
                _ => some_rows::<K, R, N>(rows, first, blocks, &x, result),
            }
        }
    }
}

/// [`direct`] for many groups of four rows: `Family::run`. Writes `[group][row][vector]`.
#[inline(always)]
pub(super) unsafe fn run<K: Kernel, const N: usize>(run: &Run<'_>, x: &Tile<'_>, sums: &mut [f32]) {
    let (blocks, cut, zero) = (x.blocks(), x.cut(), x.zero());
    run.assert_blocks(blocks);
    let x = x.vectors::<N>(blocks.next_multiple_of(K::PADDING) * K::WORDS);
    let sums = sums.as_chunks_mut::<N>().0.as_chunks_mut::<GROUP_ROWS>().0;
    assert!(sums.len() == run.groups);
    for (group, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the lengths were asserted; the caller's CPU has the instructions.
        unsafe {
            // Written out: a closure would not have the features.
            let rows = [
                run.row(group, 0, blocks),
                run.row(group, 1, blocks),
                run.row(group, 2, blocks),
                run.row(group, 3, blocks),
            ];
            *sums = [[zero; N]; GROUP_ROWS];
            add_rows::<K, GROUP_ROWS, N>(&rows, [blocks, cut], &x, sums);
        }
    }
}

/// Adds the products of `R` rows to their sums: those of so many blocks at once, one cut after the other.
#[inline(always)]
unsafe fn add_rows<K: Kernel, const R: usize, const N: usize>(
    rows: &[Row<'_>; R],
    [blocks, cut]: [usize; 2],
    x: &[*const u32; N],
    result: &mut [[f32; N]; R],
) {
    let (steps, left) = (blocks / K::Vector::LANES, blocks % K::Vector::LANES);
    let all = steps + usize::from(left > 0);
    let cut = cut.div_ceil(K::Vector::LANES);
    let mut first = 0;
    while first < all {
        let end = first.saturating_add(cut);
        // SAFETY: the caller asserted the lengths and has the instructions; steps stay inside the lengths.
        let sums = unsafe {
            let mut acc = [[K::Vector::splat(0.0); N]; R];
            for s in first..end.min(steps) {
                K::step::<R, N, false>(rows, x, s, &mut acc);
            }
            if left > 0 && end > steps {
                K::step::<R, N, true>(rows, x, steps, &mut acc);
            }
            K::Vector::sums(acc)
        };
        for (result, sums) in result.iter_mut().zip(sums) {
            for (result, sum) in result.iter_mut().zip(sums) {
                *result += sum;
            }
        }
        first = end;
    }
}

/// `R` rows from `first` on.
#[inline(always)]
unsafe fn some_rows<K: Kernel, const R: usize, const N: usize>(
    rows: &Rows<'_>,
    first: usize,
    blocks: [usize; 2],
    x: &[*const u32; N],
    result: &mut Sums,
) {
    let Some(rows) = rows.rows[first..].first_chunk::<R>() else {
        unreachable!("{R} rows from {first} on");
    };
    let mut sums = [[0.0; N]; R];
    for (sums, result) in sums.iter_mut().zip(&result[first..]) {
        sums.copy_from_slice(&result[..N]);
    }
    // SAFETY: the caller asserted the lengths and has the instructions.
    unsafe { add_rows::<K, R, N>(rows, blocks, x, &mut sums) };
    for (result, sums) in result[first..].iter_mut().zip(sums) {
        result[..N].copy_from_slice(&sums);
    }
}

/// Decodes a row: `Decoding::decode`.
#[inline(always)]
pub(super) unsafe fn decode<K: Kernel>(row: &Row<'_>, out: &mut [Line]) {
    let blocks = row.scales.len();
    row.assert_blocks(blocks);
    let (steps, left) = (blocks / K::Vector::LANES, blocks % K::Vector::LANES);
    let out = words_mut(out);
    assert!(out.len() >= blocks.next_multiple_of(K::Vector::LANES) * K::DECODED);
    // SAFETY: the lengths were asserted; the caller's CPU has the instructions.
    unsafe {
        for s in 0..steps {
            K::decode::<false>(row, s, out.as_mut_ptr());
        }
        if left > 0 {
            K::decode::<true>(row, steps, out.as_mut_ptr());
        }
    }
}

/// Adds the sums of decoded rows, `R` of them at once: `Decoding::multiply`.
#[inline(always)]
pub(super) unsafe fn multiply<K: Kernel, const R: usize>(
    decoded: &Decoded<'_>,
    x: &Tile<'_>,
    sums: SumsOfRows<'_>,
) {
    // SAFETY: the caller's CPU has the instructions.
    unsafe {
        match x.count() {
            1 => multiply_by::<K, R, 1>(decoded, x, sums),
            2 => multiply_by::<K, R, 2>(decoded, x, sums),
            3 => multiply_by::<K, R, 3>(decoded, x, sums),
            4 => multiply_by::<K, R, 4>(decoded, x, sums),
            vectors => unreachable!("{vectors} vectors"),
        }
    }
}

#[inline(always)]
unsafe fn multiply_by<K: Kernel, const R: usize, const N: usize>(
    decoded: &Decoded<'_>,
    x: &Tile<'_>,
    mut sums: SumsOfRows<'_>,
) {
    let padded = x.blocks().next_multiple_of(K::PADDING);
    let used = x.blocks().next_multiple_of(K::Vector::LANES) * K::DECODED * 4;
    let x = x.vectors::<N>(padded * K::WORDS);
    let row_bytes = (padded * K::DECODED * 4).next_multiple_of(size_of::<Line>());
    decoded.assert_row_bytes(row_bytes);
    let pitch = row_bytes / 4;
    let all = words(decoded.lines).as_ptr();
    let together = decoded.rows / R * R;
    // SAFETY: the lengths were asserted; the caller's CPU has the instructions.
    unsafe {
        for r in (0..together).step_by(R) {
            sums.add(r, products::<K, R, N>(all.add(r * pitch), pitch, &x, used));
        }
        for r in together..decoded.rows {
            sums.add(r, products::<K, 1, N>(all.add(r * pitch), pitch, &x, used));
        }
    }
}

/// The sums of `R` decoded rows of `used` bytes, `pitch` words apart.
#[inline(always)]
unsafe fn products<K: Kernel, const R: usize, const N: usize>(
    rows: *const u32,
    pitch: usize,
    x: &[*const u32; N],
    used: usize,
) -> [[f32; N]; R] {
    const {
        let (weights, values) = (size_of::<K::Weights>(), size_of::<K::Values>());
        assert!(
            values * K::DECODED == weights * K::WORDS,
            "of the same blocks"
        );
        assert!((K::Vector::LANES * K::DECODED * 4).is_multiple_of(weights));
    }
    // SAFETY: the caller asserted the lengths and has the instructions; the sizes are checked above. Rows and vectors
    // are whole cache lines, and so are aligned for any register.
    unsafe {
        let mut acc = [[K::Vector::splat(0.0); N]; R];
        for i in 0..used / size_of::<K::Weights>() {
            let mut w = [rows.cast::<K::Weights>().add(i).read(); R];
            for r in 1..R {
                w[r] = rows.add(r * pitch).cast::<K::Weights>().add(i).read();
            }
            for v in 0..N {
                let x = &*x[v].cast::<K::Values>().add(i);
                for r in 0..R {
                    acc[r][v] = K::add(&w[r], x, acc[r][v]);
                }
            }
        }
        K::Vector::sums(acc)
    }
}

/// Kernels for NVFP4 vectors.
pub(super) struct Nvfp4<V>(PhantomData<V>);

/// The weights of a step as planes, and their scales times 2^-8, in the order of the lanes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Planes<V: Vector> {
    planes: [V::Ints; 4],
    scales: V::Floats,
}

/// A step of a prepared NVFP4 vector.
#[repr(C)]
pub(super) struct PreparedStep<V: Vector> {
    planes: [V::Ints; 4],
    scales: V::Floats,
    corrections: V::Ints,
}

impl<V: Vector> Planes<V> {
    /// Those of a row, for a kernel of `N` vectors.
    #[inline(always)]
    unsafe fn of<const N: usize, const TAIL: bool>(row: &Row<'_>, step: usize) -> Self {
        row.fetch::<N>(step, V::LANES);
        // SAFETY: the row has the step; the caller's CPU has the instructions.
        unsafe {
            let codes = [
                V::codes::<TAIL>(row, step, 0),
                V::codes::<TAIL>(row, step, 1),
            ];
            Self {
                planes: V::planes(codes),
                scales: V::scales::<TAIL, true>(row, step),
            }
        }
    }
}

impl<V: Vector> Kernel for Nvfp4<V> {
    type Vector = V;

    const WORDS: usize = NVFP4_WORDS;
    const DECODED: usize = 5;
    const PADDING: usize = V::LANES;

    type Weights = Planes<V>;
    type Values = PreparedStep<V>;

    #[inline(always)]
    unsafe fn step<const R: usize, const N: usize, const TAIL: bool>(
        rows: &[Row<'_>; R],
        x: &[*const u32; N],
        step: usize,
        acc: &mut [[V::Floats; N]; R],
    ) {
        const {
            assert!(size_of::<PreparedStep<V>>() == V::LANES * Self::WORDS * 4);
            assert!(size_of::<Planes<V>>() == V::LANES * Self::DECODED * 4);
        }
        let together = V::ROWS.min(R);
        for first in (0..R).step_by(together) {
            // SAFETY: rows and vectors have the step; the caller's CPU has the instructions.
            unsafe {
                let mut w = [Planes::<V>::of::<N, TAIL>(&rows[first], step); 2];
                if together == 2 {
                    w[1] = Planes::of::<N, TAIL>(&rows[first + 1], step);
                }
                for v in 0..N {
                    let x = &*x[v].cast::<PreparedStep<V>>().add(step);
                    for r in 0..together {
                        acc[first + r][v] = Self::add(&w[r], x, acc[first + r][v]);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn decode<const TAIL: bool>(row: &Row<'_>, step: usize, out: *mut u32) {
        // SAFETY: the row and what is written have the step, at a multiple of a register; the caller's CPU has the
        // instructions.
        unsafe {
            let planes = Planes::of::<MAX_VECTORS, TAIL>(row, step);
            out.cast::<Planes<V>>().add(step).write(planes);
        }
    }

    #[inline(always)]
    unsafe fn add(w: &Planes<V>, x: &PreparedStep<V>, acc: V::Floats) -> V::Floats {
        // SAFETY: the caller's CPU has the instructions.
        unsafe {
            let scales = V::mul(w.scales, x.scales);
            V::mul_add(V::dot(&w.planes, &x.planes, x.corrections), scales, acc)
        }
    }
}

/// Kernels for vectors that are f32 values or bf16 parts.
pub(super) struct Dense<P>(PhantomData<P>);

impl<P: Products> Dense<P> {
    /// The scales of a step of a row, for a kernel of `N` vectors. With the factor that they lack at first: were it
    /// left to the end of the row, a sum of tiny vectors would lose bits to underflow on the way there.
    #[inline(always)]
    unsafe fn scales<const N: usize, const TAIL: bool>(row: &Row<'_>, step: usize) -> Floats<P> {
        row.fetch::<N>(step, P::Vector::LANES);
        // SAFETY: the row has the step; the caller's CPU has the instructions.
        unsafe {
            let scales = P::Vector::scales::<TAIL, false>(row, step);
            P::Vector::mul(scales, P::Vector::splat(256.0))
        }
    }

    /// Adds a half of the steps of some rows.
    #[inline(always)]
    unsafe fn half<const N: usize, const TAIL: bool>(
        rows: &[Row<'_>],
        scales: &[Floats<P>],
        x: &[*const u32; N],
        half: usize,
        acc: &mut [[Floats<P>; N]],
    ) {
        let together = P::Vector::ROWS.min(rows.len());
        for r in (0..rows.len()).step_by(together) {
            // SAFETY: rows and vectors have the half; the caller's CPU has the instructions.
            unsafe {
                let codes = [P::Vector::codes::<TAIL>(&rows[r], half / 2, half % 2)];
                if together == 1 {
                    Self::add_half(codes, [scales[r]], x, half, &mut acc[r..]);
                } else {
                    let other = P::Vector::codes::<TAIL>(&rows[r + 1], half / 2, half % 2);
                    let (codes, scales) = ([codes[0], other], [scales[r], scales[r + 1]]);
                    Self::add_half(codes, scales, x, half, &mut acc[r..]);
                }
            }
        }
    }

    /// Adds a half of the steps of `R` rows, whose weights the registers hold.
    #[inline(always)]
    unsafe fn add_half<const R: usize, const N: usize>(
        codes: [<P::Vector as Vector>::Ints; R],
        scales: [Floats<P>; R],
        x: &[*const u32; N],
        half: usize,
        acc: &mut [[Floats<P>; N]],
    ) {
        // Where there are few registers, one vector meets all planes before the next vector.
        let together = if P::Vector::ROWS == 1 { 1 } else { N };
        let count = P::PLANES * P::PARTS;
        // SAFETY: the vectors have the half; the caller's CPU has the instructions.
        unsafe {
            for piece in 0..P::PIECES {
                let at = (half * P::PIECES + piece) * count;
                let mut pieces = [P::piece(codes[0], piece); R];
                for r in 1..R {
                    pieces[r] = P::piece(codes[r], piece);
                }
                for first in (0..N).step_by(together) {
                    let mut sums = [[P::Vector::splat(0.0); N]; R];
                    for i in 0..count {
                        let mut w = [P::Vector::splat(0.0); R];
                        for r in 0..R {
                            w[r] = P::weights(pieces[r], i / P::PARTS);
                        }
                        for v in first..first + together {
                            let x = x[v].cast::<Floats<P>>().add(at + i).read();
                            for r in 0..R {
                                sums[r][v] = match i {
                                    0 => P::first(w[r], x),
                                    _ => P::add(w[r], x, sums[r][v]),
                                };
                            }
                        }
                    }
                    for r in 0..R {
                        let scales = P::scales(scales[r], half % 2, piece);
                        for v in first..first + together {
                            acc[r][v] = P::Vector::mul_add(sums[r][v], scales, acc[r][v]);
                        }
                    }
                }
            }
        }
    }
}

impl<P: Products> Kernel for Dense<P> {
    type Vector = P::Vector;

    const WORDS: usize = Self::DECODED * P::PARTS;
    const DECODED: usize = 2 * P::PIECES * P::PLANES;
    const PADDING: usize = DENSE_STEP;

    type Weights = Floats<P>;
    type Values = Floats<P>;

    #[inline(always)]
    unsafe fn step<const R: usize, const N: usize, const TAIL: bool>(
        rows: &[Row<'_>; R],
        x: &[*const u32; N],
        step: usize,
        acc: &mut [[Floats<P>; N]; R],
    ) {
        // Rows of which a half is added before the other half of any.
        let beside = if P::Vector::ROWS == 1 { 1 } else { R };
        for first in (0..R).step_by(beside) {
            // SAFETY: rows and vectors have the step; the caller's CPU has the instructions.
            unsafe {
                let mut scales = [P::Vector::splat(0.0); R];
                for r in 0..beside {
                    scales[r] = Self::scales::<N, TAIL>(&rows[first + r], step);
                }
                let (rows, scales) = (&rows[first..][..beside], &scales[..beside]);
                // Not a loop, which the compiler would keep: two f32 vectors take up to 10% longer in it.
                Self::half::<N, TAIL>(rows, scales, x, step * 2, &mut acc[first..]);
                // A half of zeros adds 0 to sums that are not -0.
                if !TAIL || rows[0].scales.len() % P::Vector::LANES > P::Vector::LANES / 2 {
                    Self::half::<N, TAIL>(rows, scales, x, step * 2 + 1, &mut acc[first..]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn decode<const TAIL: bool>(row: &Row<'_>, step: usize, out: *mut u32) {
        // SAFETY: the row and what is written have the step, at a multiple of a register; the caller's CPU has the
        // instructions.
        unsafe {
            let scales = Self::scales::<MAX_VECTORS, TAIL>(row, step);
            for half in 0..2 {
                let codes = P::Vector::codes::<TAIL>(row, step, half);
                for piece in 0..P::PIECES {
                    let scales = P::scales(scales, half, piece);
                    for plane in 0..P::PLANES {
                        let at = ((step * 2 + half) * P::PIECES + piece) * P::PLANES + plane;
                        let w = P::scaled(codes, piece, plane, scales);
                        out.cast::<Floats<P>>().add(at).write(w);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add(w: &Floats<P>, x: &Floats<P>, acc: Floats<P>) -> Floats<P> {
        // SAFETY: the caller's CPU has the instructions.
        unsafe { P::add(*w, *x, acc) }
    }
}

/// The [`Family`](crate::cpu::rows::Family) of a [`Kernel`]: the loops, in functions that have its target features.
/// `at_once` is how many decoded rows are multiplied at once.
macro_rules! family {
    (
        $kernel:ty, $features:literal,
        direct_tile: $direct_tile:expr,
        direct_up_to: $direct_up_to:expr,
        decoding: None,
    ) => {{
        use $crate::cpu::prepare::Tile;
        use $crate::cpu::rows::{Family, Rows, Sums};
        // A function each, so that code that is not optimised has no frame for all of them at once.
        #[target_feature(enable = $features)]
        fn direct_of<const R: usize, const N: usize>(
            rows: &Rows<'_>,
            x: &Tile<'_>,
            sums: &mut Sums,
        ) {
            // SAFETY: this function's features are all that is used.
            unsafe { $crate::cpu::loops::direct::<$kernel, R, N>(rows, x, sums) }
        }
        #[target_feature(enable = $features)]
        fn direct(rows: &Rows<'_>, x: &Tile<'_>, sums: &mut Sums) {
            match (rows.count, x.count()) {
                (4, 1) => direct_of::<4, 1>(rows, x, sums),
                (4, 2) => direct_of::<4, 2>(rows, x, sums),
                (4, 3) => direct_of::<4, 3>(rows, x, sums),
                (4, 4) => direct_of::<4, 4>(rows, x, sums),
                (1, 1) => direct_of::<1, 1>(rows, x, sums),
                (1, 2) => direct_of::<1, 2>(rows, x, sums),
                (1, 3) => direct_of::<1, 3>(rows, x, sums),
                (1, 4) => direct_of::<1, 4>(rows, x, sums),
                (rows, vectors) => unreachable!("{rows} rows, {vectors} vectors"),
            }
        }
        #[target_feature(enable = $features)]
        fn run(run: &$crate::cpu::rows::Run<'_>, x: &Tile<'_>, sums: &mut [f32]) {
            // SAFETY: this function's features are all that is used.
            unsafe {
                match x.count() {
                    1 => $crate::cpu::loops::run::<$kernel, 1>(run, x, sums),
                    2 => $crate::cpu::loops::run::<$kernel, 2>(run, x, sums),
                    vectors => unreachable!("{vectors} vectors"),
                }
            }
        }
        Family {
            direct,
            run: Some(run),
            direct_tile: $direct_tile,
            direct_up_to: $direct_up_to,
            decoding: None,
            cut: None,
        }
    }};
    (
        $kernel:ty, $features:literal,
        direct_tile: $direct_tile:expr,
        direct_up_to: $direct_up_to:expr,
        decoding: { tile: $tile:expr, rows: $rows:expr, at_once: $at_once:literal },
    ) => {{
        use $crate::cpu::loops::Kernel;
        use $crate::cpu::prepare::{Line, Tile};
        use $crate::cpu::rows::{Decoded, Decoding, Family, Row, SumsOfRows};
        #[target_feature(enable = $features)]
        fn decode(row: &Row<'_>, out: &mut [Line]) {
            // SAFETY: this function's features are all that is used.
            unsafe { $crate::cpu::loops::decode::<$kernel>(row, out) }
        }
        #[target_feature(enable = $features)]
        fn multiply(decoded: &Decoded<'_>, x: &Tile<'_>, sums: SumsOfRows<'_>) {
            // SAFETY: this function's features are all that is used.
            unsafe { $crate::cpu::loops::multiply::<$kernel, $at_once>(decoded, x, sums) }
        }
        Family {
            decoding: Some(Decoding {
                decode,
                multiply,
                bytes: <$kernel as Kernel>::DECODED * 4,
                tile: $tile,
                rows: $rows,
            }),
            ..family! {
                $kernel, $features,
                direct_tile: $direct_tile,
                direct_up_to: $direct_up_to,
                decoding: None,
            }
        }
    }};
}
pub(super) use family;

const _: () = assert!(GROUP_ROWS == 4 && MAX_VECTORS == 4 && BLOCK == 16 && WHOLE_ROWS_UP_TO == 2);
