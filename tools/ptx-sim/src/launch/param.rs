//! Kernel parameters. They are read by hand: serde's untagged enums forget where an error was.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::value::EnumAccessDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, IntoDeserializer, MapAccess,
    VariantAccess, Visitor,
};

use super::{Scalar, StructSpec};
use crate::error::SimError;
use crate::program::MAX_PARAMETERS;
use crate::sim::Buffer;

/// A kernel parameter.
#[derive(Debug, Clone, PartialEq)]
pub enum ParamSpec {
    /// `struct`: a structure passed by value.
    Struct {
        /// Members of the structure.
        layout: StructSpec,
    },
    /// A single value.
    Scalar(Scalar),
}

impl ParamSpec {
    pub(super) fn bytes(&self, buffers: &BTreeMap<String, Buffer>) -> Result<Vec<u8>, SimError> {
        let layout = match self {
            ParamSpec::Scalar(s) => return s.bytes(buffers),
            ParamSpec::Struct { layout } => layout,
        };
        if layout.size as u64 > MAX_PARAMETERS {
            return Err(SimError::Launch(format!(
                "structure of {} bytes; a kernel has at most {MAX_PARAMETERS} bytes of parameters",
                layout.size
            )));
        }
        let mut out = vec![0; layout.size];
        for f in &layout.fields {
            let v = f.value.bytes(buffers)?;
            let end = f.offset.checked_add(v.len());
            match end.and_then(|e| out.get_mut(f.offset..e)) {
                Some(slot) => slot.copy_from_slice(&v),
                None => {
                    return Err(SimError::Launch(format!(
                        "field at {} does not fit a structure of {} bytes",
                        f.offset, layout.size
                    )));
                }
            }
        }
        Ok(out)
    }
}

impl<'de> Deserialize<'de> for ParamSpec {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_map(OneEntry)
    }
}

struct OneEntry;

impl<'de> Visitor<'de> for OneEntry {
    type Value = ParamSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with one entry, such as {\"u32\": 7}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ParamSpec, A::Error> {
        let Some(kind) = map.next_key::<String>()? else {
            return Err(A::Error::custom("a parameter without a value"));
        };
        let param = match kind.as_str() {
            "struct" => ParamSpec::Struct {
                layout: map.next_value()?,
            },
            _ => {
                let entry = Entry {
                    kind,
                    map: &mut map,
                };
                ParamSpec::Scalar(Scalar::deserialize(EnumAccessDeserializer::new(entry))?)
            }
        };
        match map.next_key::<IgnoredAny>()? {
            None => Ok(param),
            Some(_) => Err(A::Error::custom("a parameter has one value")),
        }
    }
}

/// An entry of a map, its key read, as serde's externally tagged enums are written.
struct Entry<'a, A> {
    kind: String,
    map: &'a mut A,
}

struct EntryValue<'a, A>(&'a mut A);

impl<'a, 'de, A: MapAccess<'de>> EnumAccess<'de> for Entry<'a, A> {
    type Error = A::Error;
    type Variant = EntryValue<'a, A>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), A::Error> {
        let kind = seed.deserialize(self.kind.into_deserializer())?;
        Ok((kind, EntryValue(self.map)))
    }
}

impl<'de, A: MapAccess<'de>> VariantAccess<'de> for EntryValue<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.next_value()
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        self.0.next_value_seed(seed)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.next_value_seed(Seed(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.next_value_seed(Seed(visitor))
    }
}

struct Seed<V>(V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Seed<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<V::Value, D::Error> {
        d.deserialize_any(self.0)
    }
}
