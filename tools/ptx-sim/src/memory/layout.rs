//! Address layout. Every space has a window of its own in the generic address space, far from the others. So an address
//! that is used in the wrong space misses instead of hitting by chance.

use super::Space;

/// First address of global buffers.
pub const GLOBAL: u64 = 0x0000_7000_0000_0000;
/// Module variables in global memory.
pub const GLOBAL_VARS: u64 = 0x0000_7f00_0000_0000;
/// Generic window of shared memory. Its low 32 bits are not zero, as on a GPU: a generic address that was cut to 32
/// bits is no shared address.
pub const SHARED: u64 = 0x0000_1000_4000_0000;
/// Generic window of local memory.
pub const LOCAL: u64 = 0x0000_2000_0000_0000;
/// Generic window of kernel parameters.
pub const PARAM: u64 = 0x0000_3000_0000_0000;
/// Generic window of constant memory.
pub const CONST: u64 = 0x0000_4000_0000_0000;
/// Size of the windows of shared, local, param and const.
pub const WINDOW: u64 = 1 << 32;

/// Shared variables start here: the first KiB belongs to the system, as on sm_90 and later.
pub const SHARED_START: u64 = 1024;
/// Most shared memory that a CTA may have here, static and dynamic: more than any GPU has.
pub const MAX_SHARED: u32 = 256 << 10;
/// A shared address is the CTA's rank in its cluster above these bits, and an offset below.
pub const SHARED_RANK_SHIFT: u32 = 24;
/// First address of parameters and of local and constant variables in their spaces.
pub const SMALL_START: u64 = 0x200;

/// The space of a generic address and the address in it.
pub fn split_generic(address: u64) -> (Space, u64) {
    for (base, space) in [
        (SHARED, Space::Shared),
        (LOCAL, Space::Local),
        (PARAM, Space::Param),
        (CONST, Space::Const),
    ] {
        if address.wrapping_sub(base) < WINDOW {
            return (space, address - base);
        }
    }
    (Space::Global, address)
}

/// The shared address that a generic one of shared memory stands for, even one that was cut to 32 bits. `None` for a
/// number that may be a shared address itself.
pub fn generic_shared(address: u64) -> Option<u64> {
    const CUT: u64 = SHARED & 0xffff_ffff;
    let window = 16 << SHARED_RANK_SHIFT;
    [SHARED, CUT]
        .iter()
        .map(|base| address.wrapping_sub(*base))
        .find(|offset| *offset < window)
}

/// Number that is added to an address of a space to make it generic.
pub fn generic_base(space: Space) -> u64 {
    match space {
        Space::Global => 0,
        Space::Shared => SHARED,
        Space::Local => LOCAL,
        Space::Param => PARAM,
        Space::Const => CONST,
    }
}
