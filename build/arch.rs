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

/// Those of `archs` that the kernels of a translation unit of `csrc/launch` exist for.
pub(crate) fn of_unit<'a>(unit: &str, archs: &'a [String]) -> Vec<&'a str> {
    let exists = |arch: &&str| {
        let number: u32 = arch
            .trim_end_matches(['a', 'f'])
            .parse()
            .expect("the list was checked");
        match unit {
            // tcgen05 belongs to compute capability 10.x, and to architecture-specific code.
            "gemv_tcgen05" => number / 10 == 10 && arch.ends_with(['a', 'f']),
            // Codes are decoded by an architecture-specific instruction, loaded by one of sm_100.
            "gemv_nvfp4_wide" => number >= 100 && arch.ends_with(['a', 'f']),
            // TMA, mbarrier and clusters came with Hopper.
            "gemv_cuda_core_tma" | "gemv_ring" => number >= 90,
            _ => true,
        }
    };
    archs.iter().map(String::as_str).filter(exists).collect()
}
