//! Faults of the host: a launch, or a tensor map, that differs.

use super::kind::Kind;
use super::mutant::{Change, Mutant};
use crate::error::SimError;
use crate::models::swizzle::Swizzle;
use crate::models::tensor_map::{DataType, OobFill, TensorMap, TensorMapArgs};
use crate::sim::Launch;

/// Part of a launch that a fault of the host changes.
#[derive(Debug, Clone, PartialEq)]
pub enum HostFault {
    /// An argument of a tensor map, by the map's number among all that the parameters contain.
    Map(usize, MapFault),
    /// Dynamic shared memory, by so many bytes less.
    SharedLess(u32),
    /// One cluster more in this dimension of the grid.
    GridMore(usize),
}

/// An argument of `cuTensorMapEncodeTiled` that differs.
#[derive(Debug, Clone, PartialEq)]
pub enum MapFault {
    /// Another swizzle.
    Swizzle(Swizzle),
    /// Another element type.
    Type(DataType),
    /// Half the box in a dimension.
    HalfBox(usize),
    /// Twice the box in a dimension.
    TwiceBox(usize),
    /// A stride that is 16 bytes longer.
    LongerStride(usize),
    /// A dimension of one element more.
    LongerDim(usize),
    /// A dimension of one element less.
    ShorterDim(usize),
    /// Every second element of a dimension.
    EverySecond(usize),
    /// Another value outside the tensor.
    Fill(OobFill),
    /// A tensor that starts 16 bytes later.
    Later,
}

impl MapFault {
    fn apply(&self, a: &mut TensorMapArgs) {
        match self {
            MapFault::Swizzle(s) => a.swizzle = *s,
            MapFault::Type(t) => a.data_type = *t,
            MapFault::HalfBox(d) => a.box_dim[*d] /= 2,
            MapFault::TwiceBox(d) => a.box_dim[*d] = a.box_dim[*d].saturating_mul(2),
            MapFault::LongerStride(d) => a.global_strides[*d] += 16,
            MapFault::LongerDim(d) => a.global_dim[*d] += 1,
            MapFault::ShorterDim(d) => a.global_dim[*d] = a.global_dim[*d].saturating_sub(1),
            MapFault::EverySecond(d) => a.element_strides[*d] *= 2,
            MapFault::Fill(f) => a.oob_fill = *f,
            MapFault::Later => a.global_address = a.global_address.wrapping_add(16),
        }
    }
}

impl HostFault {
    /// The launch with this fault; an error where the driver would refuse it.
    pub fn apply(&self, mut l: Launch) -> Result<Launch, SimError> {
        match self {
            HostFault::SharedLess(n) => l.shared = l.shared.saturating_sub(*n),
            HostFault::GridMore(d) => l.grid[*d] += l.cluster.map_or(1, |c| c[*d]),
            HostFault::Map(n, fault) => {
                let maps = TensorMap::find(&l.params);
                let Some((param, at, old)) = maps.get(*n) else {
                    return Ok(l);
                };
                let mut args = old.args().clone();
                fault.apply(&mut args);
                let new = TensorMap::encode(args)
                    .map_err(|e| SimError::Launch(format!("tensor map: {e}")))?;
                l.params[*param][*at..*at + TensorMap::BYTES].copy_from_slice(&new.to_bytes());
            }
        }
        Ok(l)
    }
}

/// Faults that fit a launch.
pub fn host_mutants(l: &Launch) -> Vec<Mutant> {
    let mut out = Vec::new();
    let mut add = |kind, detail: String, fault| {
        out.push(Mutant::new(
            kind,
            0,
            String::new(),
            detail,
            Change::Host(fault),
        ));
    };
    if l.shared > 0 {
        for n in [16, l.shared / 2] {
            let detail = format!("{n} bytes of shared memory less");
            add(Kind::Launch, detail, HostFault::SharedLess(n));
        }
    }
    add(
        Kind::Launch,
        "one cluster more".into(),
        HostFault::GridMore(0),
    );
    for (n, (_, _, map)) in TensorMap::find(&l.params).iter().enumerate() {
        let a = map.args();
        let mut map = |detail: String, f| {
            add(
                Kind::TensorMap,
                format!("map {n}: {detail}"),
                HostFault::Map(n, f),
            );
        };
        for s in Swizzle::ALL.into_iter().filter(|s| *s != a.swizzle) {
            map(format!("swizzle {s:?}"), MapFault::Swizzle(s));
        }
        for t in (0..16).filter_map(DataType::from_driver) {
            if t != a.data_type {
                map(format!("type {t:?}"), MapFault::Type(t));
            }
        }
        let other = match a.oob_fill {
            OobFill::Zero => OobFill::NanRequestZeroFma,
            OobFill::NanRequestZeroFma => OobFill::Zero,
        };
        map(format!("fill {other:?}"), MapFault::Fill(other));
        map("16 bytes later".into(), MapFault::Later);
        for d in 0..a.global_dim.len() {
            map(format!("box {d} halved"), MapFault::HalfBox(d));
            map(format!("box {d} doubled"), MapFault::TwiceBox(d));
            map(format!("dimension {d} +1"), MapFault::LongerDim(d));
            map(format!("dimension {d} -1"), MapFault::ShorterDim(d));
            map(format!("every second of {d}"), MapFault::EverySecond(d));
        }
        for d in 0..a.global_strides.len() {
            map(format!("stride {d} +16"), MapFault::LongerStride(d));
        }
    }
    out
}
