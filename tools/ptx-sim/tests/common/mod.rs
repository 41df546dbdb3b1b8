//! Shared parts of several tests. Each test uses a part of it.
#![allow(dead_code, unused_imports)]

pub(crate) mod conformance;
pub(crate) mod hazard;
pub(crate) mod ones;
pub(crate) mod options;
pub(crate) mod relies;
