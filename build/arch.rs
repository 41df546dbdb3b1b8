//! The GPU architectures to compile machine code for.

/// Ampere, Hopper, and the Blackwells: data centre (10.0, 10.3) and consumer (12.0).
pub(crate) const DEFAULT: &str = "80;90a;100a;103a;120a";

/// Overrides [`DEFAULT`]: architectures as nvcc names them, without `sm_`, separated by `;` or `,`.
pub(crate) const VARIABLE: &str = "NVFP4_GEMV_ARCHS";

/// Reads the list.
pub(crate) fn parse(list: &str) -> Result<Vec<String>, String> {
    let mut archs = Vec::new();
    for name in list.split([';', ',', ' ']).filter(|name| !name.is_empty()) {
        let digits = name.trim_end_matches(['a', 'f']);
        let number: u32 = digits.parse().map_err(|_| {
            format!("{VARIABLE}: {name:?} is not an architecture; write 80, 90a, 100f, ...")
        })?;
        if number < 80 || name.len() > digits.len() + 1 {
            return Err(format!(
                "{VARIABLE}: {name:?} is not supported; the kernels need sm_80 or newer"
            ));
        }
        if !archs.iter().any(|a| a == name) {
            archs.push(name.to_string());
        }
    }
    if archs.is_empty() {
        return Err(format!("{VARIABLE} names no architecture"));
    }
    Ok(archs)
}
