//! What the layers of a decoder are made of.

use anyhow::Result;

use crate::config::Config;

/// A decoder layer, of norms, linear layers, and what stands behind the second norm, as a [`Maker`] makes them.
#[derive(Clone, Debug)]
pub struct Layer<Norm, Linear, FeedForward> {
    pub attention_norm: Norm,
    /// Queries, keys and values, one behind the other.
    pub qkv: Linear,
    /// Of queries and of keys.
    pub head_norms: Option<[Norm; 2]>,
    pub output: Linear,
    pub mlp_norm: Norm,
    pub feed_forward: FeedForward,
}

/// Makes the parts of layers: loads them, or invents them.
pub trait Maker {
    type Norm;
    type Linear;
    type FeedForward;

    /// The factors of a norm of so many elements.
    fn norm(&mut self, module: &str, elements: usize) -> Result<Self::Norm>;

    /// Modules as one linear layer `[rows][k]`, with their rows one behind the other.
    fn linear(&mut self, modules: &[String], rows: usize, k: usize) -> Result<Self::Linear>;

    /// An MLP.
    fn mlp(&mut self, module: &str) -> Result<Self::FeedForward>;

    /// So many experts, behind their router.
    fn experts(&mut self, module: &str, count: usize) -> Result<Self::FeedForward>;
}

impl<Norm, Linear, FeedForward> Layer<Norm, Linear, FeedForward> {
    /// Makes a layer of a model.
    ///
    /// # Errors
    /// The maker's.
    pub fn new<M>(config: &Config, number: usize, maker: &mut M) -> Result<Self>
    where
        M: Maker<Norm = Norm, Linear = Linear, FeedForward = FeedForward>,
    {
        let path = |part: &str| format!("model.layers.{number}.{part}");
        let (hidden, size) = (config.hidden_size, config.head_size());
        let (heads, kv) = (config.num_attention_heads, config.kv_heads());
        let qkv = ["q", "k", "v"].map(|part| path(&format!("self_attn.{part}_proj")));
        let mlp = path("mlp");
        Ok(Self {
            attention_norm: maker.norm(&path("input_layernorm"), hidden)?,
            qkv: maker.linear(&qkv, (heads + 2 * kv) * size, hidden)?,
            head_norms: match config.has_head_norms() {
                true => Some([
                    maker.norm(&path("self_attn.q_norm"), size)?,
                    maker.norm(&path("self_attn.k_norm"), size)?,
                ]),
                false => None,
            },
            output: maker.linear(&[path("self_attn.o_proj")], hidden, heads * size)?,
            mlp_norm: maker.norm(&path("post_attention_layernorm"), hidden)?,
            feed_forward: match config.experts(number) {
                None => maker.mlp(&mlp)?,
                Some(count) => maker.experts(&mlp, count)?,
            },
        })
    }
}
