//! The built-in tables. `cargo xtask first-light --apply` adds a line.

pub(super) const FILES: &[&str] = &[
    include_str!("h200.jsonl"), // first: tests look at it
    include_str!("h100.jsonl"),
];
