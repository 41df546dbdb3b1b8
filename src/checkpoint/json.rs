//! JSON of configs, as Python writes it, in bounded memory.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::file::not_safetensors;

/// More than any config has, in values that are no object; an object takes as much memory as [`OBJECT`] of them.
const MOST_VALUES: usize = 4 << 20;
const OBJECT: usize = 16;

/// The value of a config. Where Python has written numbers that JSON does not have, it is null.
pub(super) fn parsed(bytes: &[u8]) -> Result<Value, String> {
    let parsed = bounded(bytes).or_else(|error| match without_python_numbers(bytes) {
        Some(bytes) => bounded(&bytes),
        None => Err(error),
    });
    parsed.map_err(|error| match not_safetensors(bytes) {
        Some(what) => format!("it is {what}"),
        None => error.to_string(),
    })
}

fn bounded(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let mut left = MOST_VALUES;
    let value = Bounded { left: &mut left }.deserialize(&mut json)?;
    json.end()?;
    Ok(value)
}

/// The text with null for `Infinity`, `-Infinity` and `NaN`; `None` where there are none outside strings.
fn without_python_numbers(bytes: &[u8]) -> Option<Vec<u8>> {
    // As long but for NaN, so that an error's column remains what it was, or nearly.
    const NUMBERS: [(&[u8], &[u8]); 3] = [
        (b"-Infinity", b"null     "),
        (b"Infinity", b"null    "),
        (b"NaN", b"null"),
    ];
    let mut out = Vec::new();
    let (mut at, mut copied) = (0, 0);
    let mut in_string = false;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => in_string = !in_string,
            b'\\' if in_string => at += 1,
            b'-' | b'I' | b'N' if !in_string => {
                let rest = &bytes[at..];
                let mut numbers = NUMBERS.iter();
                if let Some((number, null)) = numbers.find(|(n, _)| rest.starts_with(n)) {
                    out.extend_from_slice(&bytes[copied..at]);
                    out.extend_from_slice(null);
                    at += number.len();
                    copied = at;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    (copied > 0).then(|| {
        out.extend_from_slice(&bytes[copied..]);
        out
    })
}

/// Makes a [`Value`] of no more than what is left.
struct Bounded<'a> {
    left: &'a mut usize,
}

impl Bounded<'_> {
    fn take<E: Error>(&mut self, values: usize) -> Result<(), E> {
        let left = self.left.checked_sub(values);
        *self.left = left.ok_or_else(|| {
            let most = MOST_VALUES / OBJECT;
            E::custom(format_args!(
                "more than {MOST_VALUES} values, or {most} objects, the most that are read"
            ))
        })?;
        Ok(())
    }

    fn again(&mut self) -> Bounded<'_> {
        Bounded { left: self.left }
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(mut self, from: D) -> Result<Value, D::Error> {
        self.take(1)?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut from: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = from.next_element_seed(self.again())? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut from: A) -> Result<Value, A::Error> {
        self.take(OBJECT)?;
        let mut values = Map::new();
        while let Some(key) = from.next_key::<String>()? {
            values.insert(key, from.next_value_seed(self.again())?);
        }
        Ok(Value::Object(values))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_those_of_serde_json() {
        let text = r#"{"a": [1, -2, 0.1, 1e300, "x\u00e9", true, null, {}], "b": {"c": []}, "a": [18446744073709551615]}"#;
        for text in [text, "[]", "null", "\"x\""] {
            let expected: Value = serde_json::from_str(text).unwrap();
            assert_eq!(parsed(text.as_bytes()).unwrap(), expected);
        }
        for text in ["", "{", "[1] 2", "{\"a\" 1}", "[nan]"] {
            let expected = serde_json::from_str::<Value>(text).unwrap_err().to_string();
            assert_eq!(parsed(text.as_bytes()).unwrap_err(), expected);
        }
    }

    #[test]
    fn numbers_of_python_are_null() {
        for (text, expected) in [
            (
                r#"{"limit": [0.0, Infinity, -Infinity, NaN], "a": "NaN", "b": 1}"#,
                json!({ "limit": [0.0, null, null, null], "a": "NaN", "b": 1 }),
            ),
            (
                r#"["\"Infinity", "\\", NaN, "-Infinity\\\""]"#,
                json!(["\"Infinity", "\\", null, "-Infinity\\\""]),
            ),
            ("NaN", Value::Null),
        ] {
            assert_eq!(parsed(text.as_bytes()), Ok(expected), "{text}");
        }
        for text in [
            "[-NaN]",
            "[NaN1]",
            "[Infinity",
            "[Inf]",
            "[-1 Infinity]",
            "\"NaN",
        ] {
            assert!(parsed(text.as_bytes()).is_err(), "{text}");
        }
        let error = parsed(b"[Infinity, -Infinity, x]").unwrap_err();
        assert!(error.contains("column 23"), "{error}");
    }

    #[test]
    fn more_values_than_any_config_has_are_refused() {
        for (value, most) in [("0", MOST_VALUES), ("{}", MOST_VALUES / (OBJECT + 1))] {
            let list =
                |length: usize| format!("[{value}{}]", format!(",{value}").repeat(length - 1));
            // The list is one more.
            assert!(parsed(list(most - 1).as_bytes()).is_ok(), "{value}");
            let error = parsed(list(most + 1).as_bytes()).unwrap_err();
            assert!(error.contains("4194304 values"), "{error}");
        }
    }
}
