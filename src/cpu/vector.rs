//! Sets of vector instructions, as the few operations of which the kernels are made.
//!
//! The operations have no target features of their own. They are inlined through the loops into the functions of
//! [`family`](crate::cpu::loops::family), which have them.

use crate::cpu::rows::Row;

/// The order of elements for 256 bits of codes, whose 128-bit halves are taken apart alike. Interleaving the two bytes of
/// a bf16 spreads the codes over eight registers of floats: by half of 128 bits, by nibble and by parity of the byte.
pub(super) const HALVES: [u8; 128] = {
    let mut order = [0; 128];
    let mut i = 0;
    while i < 128 {
        let (vector, upper, nibble, parity) = (i / 64, i / 32 % 2, i / 16 % 2, i / 8 % 2);
        let (lane, dword) = (i / 4 % 2, i % 4);
        let byte = lane * 16 + upper * 8 + dword * 2 + parity;
        order[i] = (vector * 64 + byte * 2 + nibble) as u8;
        i += 1;
    }
    order
};

/// A set of vector instructions on registers of 32-bit lanes.
///
/// # Safety
/// The functions may only be called on a CPU that has the instructions, and for a step that the row has.
pub(super) trait Vector: Copy {
    /// Lanes of a register, and blocks of a step: with an NVFP4 vector each lane sums a block.
    const LANES: usize;
    /// Rows, 1 or 2, whose weights the registers hold; a kernel of more vectors sums as many at once.
    const ROWS: usize;

    type Ints: Copy;
    type Floats: Copy;

    /// The codes of half a step. `TAIL`: the last step of a row, which is no whole one, with zeros past the end.
    unsafe fn codes<const TAIL: bool>(row: &Row<'_>, step: usize, half: usize) -> Self::Ints;

    /// The scales of a step, times 2^-8: E4M3 is f16 with a shorter exponent and mantissa, its bias 8 less. In the
    /// order of the blocks, or of the lanes in which `planes` has them.
    unsafe fn scales<const TAIL: bool, const IN_LANES: bool>(
        row: &Row<'_>,
        step: usize,
    ) -> Self::Floats;

    /// The weights of a step as the planes of a prepared NVFP4 vector, for `dot`.
    unsafe fn planes(codes: [Self::Ints; 2]) -> [Self::Ints; 4];

    /// The sum of a block's 16 products in each lane. `corrections` are the prepared vector's.
    unsafe fn dot(
        planes: &[Self::Ints; 4],
        x: &[Self::Ints; 4],
        corrections: Self::Ints,
    ) -> Self::Floats;

    /// The number in all lanes.
    unsafe fn splat(number: f32) -> Self::Floats;

    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// `a * b + c`, which rounds once where there are instructions for it.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// The sum of the lanes of each register.
    unsafe fn sums<const R: usize, const N: usize>(acc: [[Self::Floats; N]; R]) -> [[f32; N]; R];
}

/// A register of floats of a [`Products`].
pub(super) type Floats<P> = <<P as Products>::Vector as Vector>::Floats;

/// How weights meet vectors that are f32 values or bf16 parts.
///
/// The codes of half a step are taken apart piece by piece. A piece is some registers of weights, planes, whose lanes
/// have the same scales. Each plane meets the registers of all parts of a vector.
///
/// # Safety
/// As for [`Vector`].
pub(super) trait Products {
    type Vector: Vector;

    /// Pieces of half a step.
    const PIECES: usize;
    /// Planes of a piece.
    const PLANES: usize;
    /// Parts of a value of a vector.
    const PARTS: usize;

    /// A piece: the weights, or the codes, where each plane is decoded when it is needed.
    type Piece: Copy;

    unsafe fn piece(codes: <Self::Vector as Vector>::Ints, piece: usize) -> Self::Piece;

    /// A plane of weights.
    unsafe fn weights(piece: Self::Piece, plane: usize) -> Floats<Self>;

    /// The scales of a piece of half a step, from all scales of the step.
    unsafe fn scales(of_step: Floats<Self>, half: usize, piece: usize) -> Floats<Self>;

    /// Weights times scales, without rounding.
    #[inline(always)]
    unsafe fn scaled(
        codes: <Self::Vector as Vector>::Ints,
        piece: usize,
        plane: usize,
        scales: Floats<Self>,
    ) -> Floats<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::Vector::mul(Self::weights(Self::piece(codes, piece), plane), scales) }
    }

    /// The first products of a sum.
    #[inline(always)]
    unsafe fn first(w: Floats<Self>, x: Floats<Self>) -> Floats<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::Vector::mul(w, x) }
    }

    /// Products, added to a sum.
    #[inline(always)]
    unsafe fn add(w: Floats<Self>, x: Floats<Self>, sum: Floats<Self>) -> Floats<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::Vector::mul_add(w, x, sum) }
    }
}
