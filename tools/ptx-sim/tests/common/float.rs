//! Values of float codes, from a description of their own.

/// Sign, `exponent_bits` with the usual bias, then `mantissa_bits`. No code is an infinity or NaN.
pub(crate) fn float(code: u8, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let mantissa = f64::from(code & ((1 << mantissa_bits) - 1));
    let exponent = i32::from((code >> mantissa_bits) & ((1 << exponent_bits) - 1));
    let fraction = mantissa / f64::from(1 << mantissa_bits);
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(1 - bias),
        e => (1.0 + fraction) * 2f64.powi(e - bias),
    };
    let negative = code >> (exponent_bits + mantissa_bits) & 1 == 1;
    if negative { -magnitude } else { magnitude }
}
