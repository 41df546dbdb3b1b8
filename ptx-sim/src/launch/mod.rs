//! Launch specifications.
