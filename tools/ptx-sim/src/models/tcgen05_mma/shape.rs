//! M and N that each kind takes: "Various combinations of .kind and shapes", and "Various combinations of N shape with
//! .cta_group qualifier for 8bit transpose B".

use super::super::idesc::{Element, Idesc, Kind};
use super::super::smem_desc::Major;
use super::{CtaGroup, MmaError};

/// Checks M and N of a dense, non-`.ws` instruction.
pub fn check_shape(idesc: &Idesc, group: CtaGroup) -> Result<(), MmaError> {
    let (kind, m, n) = (idesc.kind, idesc.m, idesc.n);
    let m_ok = match (kind.is_block_scaled(), group) {
        (false, CtaGroup::One) => matches!(m, 64 | 128),
        (true, CtaGroup::One) => m == 128,
        (_, CtaGroup::Two) => matches!(m, 128 | 256),
    };
    let byte_b = matches!(
        idesc.b,
        Element::E4m3 | Element::E5m2 | Element::U8 | Element::S8
    );
    let step = match (kind, group) {
        _ if byte_b && idesc.b_major == Major::Mn => 16 * group.ctas() as u32,
        (Kind::I8, CtaGroup::Two) => 32,
        (Kind::I8, CtaGroup::One) if n > 32 => 16,
        (_, CtaGroup::One) => 8,
        (_, CtaGroup::Two) => 16,
    };
    if m_ok && n > 0 && n <= 256 && n.is_multiple_of(step) {
        Ok(())
    } else {
        Err(MmaError::Shape {
            kind,
            group: group.ctas(),
            m,
            n,
        })
    }
}
