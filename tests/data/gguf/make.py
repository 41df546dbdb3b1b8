"""Makes the GGUF files of this folder, with the ecosystem's own writer and its own dequantisation.

    python3 -m venv venv && venv/bin/pip install gguf==0.19.0 safetensors==0.8.0 && venv/bin/python make.py

`types.gguf` and `integers.gguf` have a tensor of each type that is read, `llama.gguf` one layer of a model whose rows of
q and k are permuted, `split-*.gguf` a model in three files. The `.safetensors` file beside each has what PyPI `gguf` dequantises its tensors to, in f32, with q and k put
back as transformers has them.
"""

import pathlib

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
TYPES = gguf.GGMLQuantizationType
random = np.random.default_rng(40)


def nvfp4(rows, k):
    """Blocks of all codes, and all scales but those with a sign; 0x00 and 0x7f, which mean 0, among them."""
    blocks = random.integers(0, 256, (rows, k // 64, 36), dtype=np.uint8)
    blocks[:, :, :4] &= 0x7F
    blocks[0, 0, :4] = [0x00, 0x7F, 0x7E, 0x01]
    return blocks.reshape(rows, -1)


def mxfp4(rows, k, least, most):
    """Blocks of all codes, whose scales are 2^least to 2^most."""
    blocks = random.integers(0, 256, (rows, k // 32, 17), dtype=np.uint8)
    blocks[:, :, 0] = random.integers(least, most + 1, (rows, k // 32)) + 127
    return blocks.reshape(rows, -1)


def permuted(weight, heads):
    """The rows of q or k as llama.cpp's converter stores them: each head's two halves in turns."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


class File:
    def __init__(self, name, architecture):
        self.name = name
        self.writer = gguf.GGUFWriter(HERE / f"{name}.gguf", architecture)
        self.expected = {}

    def add(self, name, data, of, shown=None, expected=None):
        """A tensor of quantised bytes; `expected` where it is stored in another order."""
        self.writer.add_tensor(name, data, raw_dtype=of)
        values = dequantize(data, of) if expected is None else dequantize(expected, of)
        self.expected[shown or name] = np.ascontiguousarray(values, dtype=np.float32)

    def close(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        save_file(self.expected, HERE / f"{self.name}.safetensors")


def types():
    file = File("types", "some-model")
    floats = (random.standard_normal((6, 64)) * 3).astype(np.float32)
    for of in [TYPES.F32, TYPES.F16, TYPES.BF16, TYPES.Q4_0, TYPES.Q4_1, TYPES.Q8_0]:
        file.add(f"{of.name.lower()}.weight", quantize(floats, of), of)
    # Any bytes, not only what a quantiser makes; f16 that are neither infinite nor NaN.
    for of, halves in [(TYPES.Q4_0, 1), (TYPES.Q4_1, 2), (TYPES.Q8_0, 1)]:
        block, size = gguf.GGML_QUANT_SIZES[of]
        blocks = random.integers(0, 256, (5, 2, size), dtype=np.uint8)
        for half in range(halves):
            blocks[:, :, 2 * half + 1] &= 0xBB
        file.add(f"{of.name.lower()}_any.weight", blocks.reshape(5, -1), of)
    file.add("q5_0.weight", quantize(floats, TYPES.Q5_0), TYPES.Q5_0)
    file.add("nvfp4.weight", nvfp4(5, 192), TYPES.NVFP4)
    # A quantiser's, with a global scale.
    file.add("nvfp4_scaled.weight", nvfp4(4, 64), TYPES.NVFP4)
    file.add("nvfp4_scaled.scale", np.array([0.0123], np.float32), TYPES.F32)
    file.add("nvfp4_scaled.input_scale", np.array([0.5], np.float32), TYPES.F32)
    experts = np.stack([nvfp4(4, 64) for _ in range(3)])
    file.add("nvfp4_exps.weight", experts, TYPES.NVFP4)
    file.add("nvfp4_exps.weight.scale", np.array([0.5, 0.3, 0.7], np.float32), TYPES.F32)
    signed = nvfp4(4, 64)
    signed[2, 1] = 0x85
    file.add("nvfp4_signed.weight", signed, TYPES.NVFP4)
    file.add("mxfp4.weight", mxfp4(5, 96, -20, -3), TYPES.MXFP4)
    # Rows that span 2^17 each, of powers that span more together; a block of zeros whose power is none of them.
    wide = np.concatenate([mxfp4(1, 96, least, least + 17) for least in (-100, -9, 60)])
    wide[1, :17] = [254] + [0x80, 0x08] * 8
    file.add("mxfp4_wide.weight", wide, TYPES.MXFP4)
    file.add("mxfp4_exps.weight", np.stack([mxfp4(2, 64, 0, 5) for _ in range(2)]), TYPES.MXFP4)
    too_wide = mxfp4(3, 64, 0, 5)
    too_wide[1, 0], too_wide[1, 17], too_wide[1, 1], too_wide[1, 18] = 100, 118, 0x11, 0x11
    file.add("mxfp4_too_wide.weight", too_wide, TYPES.MXFP4)
    nan = mxfp4(3, 64, 0, 5)
    nan[2, 17] = 255
    file.writer.add_tensor("mxfp4_nan.weight", nan, raw_dtype=TYPES.MXFP4)
    file.add("lora.weight", nvfp4(2, 64), TYPES.NVFP4)
    file.add("lora.lora_a", np.zeros(4, np.float32), TYPES.F32)
    file.close()


def llama():
    heads, kv_heads, hidden, size = 4, 2, 64, 8
    file = File("llama", "llama")
    file.writer.add_block_count(1)
    file.writer.add_embedding_length(hidden)
    file.writer.add_head_count(heads)
    file.writer.add_head_count_kv(kv_heads)
    file.writer.add_layer_norm_rms_eps(1e-5)
    file.writer.add_rope_freq_base(10000.0)
    file.writer.add_feed_forward_length(128)
    file.writer.add_context_length(64)
    file.writer.add_vocab_size(16)
    file.writer.add_token_list(["a", "b", "größe"])

    def matrix(rows, k, of):
        return quantize(random.standard_normal((rows, k)).astype(np.float32), of)

    file.add("token_embd.weight", matrix(16, hidden, TYPES.Q8_0), TYPES.Q8_0, "model.embed_tokens.weight")
    norm = random.standard_normal(hidden).astype(np.float32)
    file.add("output_norm.weight", norm, TYPES.F32, "model.norm.weight")
    file.add("blk.0.attn_norm.weight", norm + 1, TYPES.F32, "model.layers.0.input_layernorm.weight")
    at = "model.layers.0.self_attn"
    q = matrix(heads * size, hidden, TYPES.Q4_1)
    file.add("blk.0.attn_q.weight", permuted(q, heads), TYPES.Q4_1, f"{at}.q_proj.weight", q)
    bias = random.standard_normal(heads * size).astype(np.float32)
    file.add("blk.0.attn_q.bias", permuted(bias, heads), TYPES.F32, f"{at}.q_proj.bias", bias)
    k = nvfp4(kv_heads * size, hidden)
    file.add("blk.0.attn_k.weight", permuted(k, kv_heads), TYPES.NVFP4, f"{at}.k_proj.weight", k)
    file.add("blk.0.attn_k.scale", np.array([0.25], np.float32), TYPES.F32, f"{at}.k_proj.scale")
    file.add("blk.0.attn_v.weight", matrix(kv_heads * size, hidden, TYPES.F16), TYPES.F16, f"{at}.v_proj.weight")
    file.add("blk.0.attn_output.weight", matrix(hidden, heads * size, TYPES.Q4_0), TYPES.Q4_0, f"{at}.o_proj.weight")
    file.add("blk.0.ffn_gate.weight", nvfp4(128, hidden), TYPES.NVFP4, "model.layers.0.mlp.gate_proj.weight")
    file.add("blk.0.ffn_up.weight", mxfp4(128, hidden, -8, -1), TYPES.MXFP4, "model.layers.0.mlp.up_proj.weight")
    down = matrix(hidden, 128, TYPES.BF16)
    file.add("blk.0.ffn_down.weight", down, TYPES.BF16, "model.layers.0.mlp.down_proj.weight")
    file.close()


def integers():
    """Types of integers that `types.gguf` has not: any bytes, with f16 that are neither infinite nor NaN."""
    file = File("integers", "some-model")
    for of, halves in [(TYPES.Q5_0, [0]), (TYPES.Q5_1, [0, 2]), (TYPES.Q4_K, [0, 2]), (TYPES.Q5_K, [0, 2]), (TYPES.Q6_K, [208])]:
        elements, size = gguf.GGML_QUANT_SIZES[of]
        blocks = random.integers(0, 256, (2, 256 // elements, size), dtype=np.uint8)
        for half in halves:
            blocks[:, :, half + 1] &= 0xBB
        file.add(f"{of.name.lower()}.weight", blocks.reshape(2, -1), of)
    file.writer.add_tensor("q3_k.weight", np.zeros((1, 110), np.uint8), raw_dtype=TYPES.Q3_K)
    file.close()


def split():
    """A model in three files, as llama.cpp's converter splits one."""
    for file in HERE.glob("split-*.gguf"):
        file.unlink()
    file = File("split", "qwen3")
    file.writer = gguf.GGUFWriter(HERE / "split.gguf", "qwen3", split_max_tensors=2)
    file.writer.add_head_count(2)
    for at in range(5):
        weight = quantize(random.standard_normal((2, 32)).astype(np.float32), TYPES.Q8_0)
        file.add(f"blk.{at}.ffn_down.weight", weight, TYPES.Q8_0, f"model.layers.{at}.mlp.down_proj.weight")
    file.close()


types()
llama()
integers()
split()
