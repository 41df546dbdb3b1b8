//! What several tests share. Each uses a part of it.
#![allow(dead_code, unused_imports)]

pub(crate) mod conformance;
pub(crate) mod data;
pub(crate) mod hazard;
pub(crate) mod ones;
pub(crate) mod relies;
