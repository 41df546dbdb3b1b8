//! Mutations of JSON values.

use fastrand::Rng;
use serde_json::{Map, Value, json};

use crate::pick;

/// Changes a JSON document, or some in lines, in one to four places. `None` for what is none.
pub fn mutate(text: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
    let documents = serde_json::Deserializer::from_slice(text).into_iter();
    let mut documents: Vec<Value> = documents.collect::<Result<_, _>>().ok()?;
    for _ in 0..rng.usize(1..=4) {
        let at = rng.usize(..documents.len().max(1));
        change(documents.get_mut(at)?, rng);
    }
    let lines: Result<Vec<_>, _> = documents.iter().map(serde_json::to_vec).collect();
    Some(lines.ok()?.join(&b'\n'))
}

/// Changes one value of a document.
pub fn change(document: &mut Value, rng: &mut Rng) {
    let mut all = Vec::new();
    collect(document, &mut all);
    let other = pick(rng, &all).cloned().unwrap_or_default();
    let keys: Vec<String> = all
        .iter()
        .filter_map(Value::as_object)
        .flat_map(Map::keys)
        .cloned()
        .collect();
    let nth = rng.usize(..all.len());
    let Some(value) = find(document, &mut { nth }) else {
        return;
    };
    match (value, rng.u8(..8)) {
        (value, 0) => *value = scalar(rng),
        (value, 1) => *value = other,
        (Value::Number(n), _) => {
            let n = n.clone();
            let new = match (n.as_u64(), rng.u8(..4)) {
                (Some(v), 0) => json!(v.wrapping_add(1)),
                (Some(v), 1) => json!(v.wrapping_sub(1)),
                (Some(v), 2) => json!(v.wrapping_shl(rng.u32(..64))),
                _ => json!(-n.as_f64().unwrap_or(1.0)),
            };
            if let Some(value) = find(document, &mut { nth }) {
                *value = new;
            }
        }
        (Value::String(s), how) => match how {
            2 => s.push_str(pick(rng, &["/..", "\u{1b}[2J", "0", "\0", "é"]).unwrap_or(&"")),
            3 => *s = s.chars().skip(1).collect(),
            _ => *s = pick(rng, &keys).cloned().unwrap_or_default(),
        },
        (Value::Array(a), how) => match (how, pick(rng, a).cloned()) {
            (2, _) => drop(a.pop()),
            // Sizes that are all large: what overflows is their product.
            (4 | 5, _) => a.fill(scalar(rng)),
            (3, Some(one)) => a.extend(std::iter::repeat_n(one, 40)),
            (_, Some(one)) => a.push(one),
            (_, None) => a.push(other),
        },
        (Value::Object(o), how) => {
            let inside: Vec<String> = o.keys().cloned().collect();
            let key = pick(rng, &inside).cloned().unwrap_or_default();
            let new = pick(rng, &keys).cloned().unwrap_or_default();
            match how {
                2 => drop(o.remove(&key)),
                3 => drop(o.insert(new, other)),
                _ => {
                    let moved = o.remove(&key).unwrap_or_default();
                    o.insert(new, moved);
                }
            }
        }
        (value, _) => *value = scalar(rng),
    }
}

/// A value at some bound.
fn scalar(rng: &mut Rng) -> Value {
    let all = [
        json!(0),
        json!(1),
        json!(-1),
        json!(16),
        json!(255),
        json!(65536),
        json!(i32::MAX),
        json!(u32::MAX),
        json!(1u64 << 32),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(0.5),
        json!(-0.0),
        json!(1e-45),
        json!(1e39),
        json!(1e308),
        json!(""),
        json!(".."),
        json!("/"),
        json!("nan"),
        json!(null),
        json!(true),
        json!([]),
        json!({}),
    ];
    pick(rng, &all).cloned().unwrap_or_default()
}

fn children(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Array(a) => a.iter_mut().collect(),
        Value::Object(o) => o.values_mut().collect(),
        _ => Vec::new(),
    }
}

fn collect(value: &mut Value, all: &mut Vec<Value>) {
    all.push(value.clone());
    for child in children(value) {
        collect(child, all);
    }
}

/// The value that [`collect`] finds as the `nth`.
fn find<'a>(value: &'a mut Value, nth: &mut usize) -> Option<&'a mut Value> {
    if *nth == 0 {
        return Some(value);
    }
    *nth -= 1;
    children(value).into_iter().find_map(|c| find(c, nth))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_stay_json_and_differ() {
        let text = br#"{"a": [1, 2, {"b": "c"}], "d": 0.5}"#;
        let mut rng = Rng::with_seed(1);
        let new: std::collections::BTreeSet<Vec<u8>> =
            (0..200).filter_map(|_| mutate(text, &mut rng)).collect();
        assert!(new.len() > 100, "{}", new.len());
        for text in new {
            serde_json::from_slice::<Value>(&text).unwrap();
        }
        assert!(mutate(b"{", &mut rng).is_none());
    }
}
