//! Tensor maps in launch specifications.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::SimError;
use crate::models::Enumeration;
use crate::models::swizzle::Swizzle;
use crate::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};
use crate::sim::Buffer;

/// The arguments of `cuTensorMapEncodeTiled`. Enumerators are the driver's. JSON has their numbers or their names, with
/// or without the prefix of all names of an enumeration: `3`, `"128B"`, `"CU_TENSOR_MAP_SWIZZLE_128B"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorMapSpec {
    /// Buffer that the tensor lies in.
    pub buffer: String,
    /// Bytes into the buffer.
    #[serde(default)]
    pub offset: u64,
    /// `CUtensorMapDataType`.
    #[serde(rename = "type", deserialize_with = "enumerator::<DataType, _>")]
    pub data_type: u32,
    /// Elements of each dimension, innermost first.
    pub dims: Vec<u64>,
    /// Bytes between neighbours in each dimension but the first.
    #[serde(default)]
    pub strides: Vec<u64>,
    /// Elements of the box in each dimension.
    #[serde(rename = "box")]
    pub box_dim: Vec<u32>,
    /// Traversal strides; 1 if there are none.
    #[serde(default)]
    pub elem_strides: Option<Vec<u32>>,
    /// `CUtensorMapInterleave`.
    #[serde(default, deserialize_with = "enumerator::<Interleave, _>")]
    pub interleave: u32,
    /// `CUtensorMapSwizzle`.
    #[serde(default, deserialize_with = "enumerator::<Swizzle, _>")]
    pub swizzle: u32,
    /// `CUtensorMapL2promotion`.
    #[serde(default, deserialize_with = "enumerator::<L2Promotion, _>")]
    pub l2_promotion: u32,
    /// `CUtensorMapFloatOOBfill`.
    #[serde(default, deserialize_with = "enumerator::<OobFill, _>")]
    pub oob_fill: u32,
}

/// A number, whether or not there is such an enumerator, or the number of a name.
fn enumerator<'de, E: Enumeration, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    struct Of<E>(PhantomData<E>);

    impl<E: Enumeration> Visitor<'_> for Of<E> {
        type Value = u32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a number, or a name: {}", E::NAMES.join(", "))
        }

        fn visit_u64<X: Error>(self, value: u64) -> Result<u32, X> {
            u32::try_from(value).map_err(|_| X::invalid_value(Unexpected::Unsigned(value), &self))
        }

        fn visit_str<X: Error>(self, name: &str) -> Result<u32, X> {
            let rest = name.strip_prefix(E::PREFIX).unwrap_or(name);
            let number = E::NAMES.iter().position(|known| *known == rest);
            let number = number.map(|number| number as u32);
            number.ok_or_else(|| X::invalid_value(Unexpected::Str(name), &self))
        }
    }

    d.deserialize_any(Of(PhantomData::<E>))
}

fn refuse(message: impl std::fmt::Display) -> SimError {
    SimError::Launch(format!("tensor_map: {message}"))
}

impl TensorMapSpec {
    /// Checks the arguments as the driver does.
    pub fn encode(&self, buffers: &BTreeMap<String, Buffer>) -> Result<TensorMap, SimError> {
        let buffer = buffers
            .get(&self.buffer)
            .ok_or_else(|| refuse(format!("there is no buffer `{}`", self.buffer)))?;
        let unknown = |what: &str, value: u32| refuse(format!("{what} {value} is not known"));
        let ones = || vec![1; self.dims.len()];
        TensorMap::encode(TensorMapArgs {
            data_type: DataType::from_driver(self.data_type)
                .ok_or_else(|| unknown("type", self.data_type))?,
            global_address: buffer.address.wrapping_add(self.offset),
            global_dim: self.dims.clone(),
            global_strides: self.strides.clone(),
            box_dim: self.box_dim.clone(),
            element_strides: self.elem_strides.clone().unwrap_or_else(ones),
            interleave: Interleave::from_driver(self.interleave)
                .ok_or_else(|| unknown("interleave", self.interleave))?,
            swizzle: Swizzle::from_driver(self.swizzle)
                .ok_or_else(|| unknown("swizzle", self.swizzle))?,
            l2_promotion: L2Promotion::from_driver(self.l2_promotion)
                .ok_or_else(|| unknown("l2_promotion", self.l2_promotion))?,
            oob_fill: OobFill::from_driver(self.oob_fill)
                .ok_or_else(|| unknown("oob_fill", self.oob_fill))?,
        })
        .map_err(refuse)
    }
}
