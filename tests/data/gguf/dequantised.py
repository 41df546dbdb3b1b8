"""Dequantises a GGUF file of architecture `llama` with PyPI `gguf`, with transformers' names and order of rows.

    python dequantised.py IN.gguf OUT.safetensors

`checkpoint_gguf.rs` compares SmolLM2 with it.
"""

import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file

PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

reader = GGUFReader(sys.argv[1])
heads = {
    "attn_q": int(reader.fields["llama.attention.head_count"].contents()),
    "attn_k": int(reader.fields["llama.attention.head_count_kv"].contents()),
}
out = {}
for tensor in reader.tensors:
    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    if tensor.name.startswith("blk."):
        _, layer, part, rest = tensor.name.split(".")
        name = f"model.layers.{layer}.{PARTS[part]}.{rest}"
        if part in heads:
            rows, k = values.shape
            # [heads][half][2] as stored becomes [heads][2][half].
            values = values.reshape(heads[part], rows // heads[part] // 2, 2, k).swapaxes(1, 2).reshape(rows, k)
    else:
        part, rest = tensor.name.split(".")
        name = f"{TOP[part]}.{rest}"
    out[name] = np.ascontiguousarray(values)
save_file(out, sys.argv[2])
