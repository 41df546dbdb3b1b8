//! Executes the PTX that nvcc emits for this project's kernels, on the CPU.
//!
//! The tensor-core kernels need a Blackwell GPU that most machines, and every CI runner,
//! lack. This crate will run their PTX functionally, with the asynchrony of TMA, mbarrier
//! and tcgen05 modelled at its most hostile, so that a missing wait or fence is an error
//! here and not a wrong answer there.
//!
//! It is an empty shell: nothing is implemented yet, and nothing depends on it.

pub mod models;
