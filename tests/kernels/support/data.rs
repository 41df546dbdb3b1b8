//! Problems and their true results.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use nvfp4_gemv::problem::Problem;
use nvfp4_gemv::reference::{self, Reference};
use nvfp4_gemv::{Nvfp4Vectors, ScaleLayout, Shape, VectorScale, Vectors};

/// A problem, its factors and its result.
pub(crate) struct Data {
    pub(crate) problem: Problem,
    /// M factors of rows, or L * M, or none.
    pub(crate) row_alpha: Vec<f32>,
    /// L * N factors of NVFP4 vectors, or none.
    pub(crate) vector_alpha: Vec<f32>,
    pub(crate) truth: Reference,
    /// Every sum is exact, in any order.
    pub(crate) exact: bool,
}

impl Data {
    fn new(problem: Problem, exact: bool) -> Self {
        let alpha = problem.weights(ScaleLayout::Linear).unwrap();
        Self {
            row_alpha: alpha.row_alpha().unwrap_or_default().to_vec(),
            vector_alpha: Vec::new(),
            truth: problem.reference().unwrap(),
            problem,
            exact,
        }
    }

    /// Integers, whose sums are exact.
    pub(crate) fn exact(shape: Shape, seed: u64) -> Self {
        Self::new(Problem::integers(shape, seed), true)
    }

    /// Numbers of the whole range, with factors of the rows.
    pub(crate) fn random(shape: Shape, seed: u64) -> Self {
        Self::new(Problem::full_range(shape, seed).with_row_alpha(seed), false)
    }

    /// A problem's weights times other vectors than its own.
    pub(crate) fn with_vectors(problem: Problem, vectors: &Vectors<'_>) -> Self {
        let w = problem.weights(ScaleLayout::Linear).unwrap();
        let truth = reference::gemv(&problem.shape, &w.view().unwrap(), vectors).unwrap();
        Self {
            truth,
            row_alpha: Vec::new(),
            vector_alpha: Vec::new(),
            exact: false,
            problem,
        }
    }

    /// The contest's, which asks for its own tolerance.
    pub(crate) fn contest(shape: Shape) -> Self {
        Self::new(Problem::contest(shape, 1), false)
    }

    /// Numbers that are hard in one way.
    pub(crate) fn edge(shape: Shape, edge: nvfp4_gemv::problem::EdgeCase, seed: u64) -> Self {
        Self::new(Problem::edge_case(shape, edge, seed), false)
    }

    /// Integers, with integers as factors of each batch's rows and of each vector.
    pub(crate) fn alphas(shape: Shape) -> Self {
        let problem = Problem::integers(shape, 8);
        let (rows, vectors) = (shape.l() * shape.m(), shape.l() * shape.n());
        let row_alpha: Vec<f32> = (0..rows).map(|i| (i % 13) as f32 - 6.0).collect();
        let vector_alpha: Vec<f32> = (0..vectors).map(|i| (1 + i % 5) as f32).collect();
        let linear = ScaleLayout::Linear;
        let (w, x) = (problem.weights(linear).unwrap(), problem.vectors(linear).unwrap());
        let weights = w.view().unwrap().with_row_alpha(&row_alpha).unwrap();
        let factors = VectorScale::PerVector(&vector_alpha[..]);
        let vectors = Nvfp4Vectors::new(&x.codes[..], &x.scales[..], linear, factors);
        let truth = reference::gemv(&shape, &weights, &Vectors::Nvfp4(vectors)).unwrap();
        Self {
            truth,
            row_alpha,
            vector_alpha,
            exact: true,
            problem,
        }
    }

    /// Exact and random data of a large shape, made once for the trials of all kernels.
    pub(crate) fn shared(shape: Shape) -> Arc<[Self; 2]> {
        type Cell = Arc<OnceLock<Arc<[Data; 2]>>>;
        static MADE: LazyLock<Mutex<HashMap<Shape, Cell>>> = LazyLock::new(Mutex::default);
        let cell = MADE.lock().unwrap().entry(shape).or_default().clone();
        cell.get_or_init(|| Arc::new([Self::exact(shape, 1), Self::random(shape, 2)])).clone()
    }
}
