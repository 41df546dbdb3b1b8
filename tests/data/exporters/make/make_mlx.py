"""Makes the checkpoint `mlx`: MLX quantises pieces of a real matrix, a layer and experts, and dequantises what it wrote.

    pip install torch==2.12.1 transformers==5.14.1 safetensors "mlx[cpu]==0.32.4"
    python make_mlx.py
"""

import json
import shutil

import mlx.core as mx
import mlx.nn as nn
import numpy
import torch
from safetensors import safe_open

import tiny

MODE = {"group_size": 16, "bits": 4, "mode": "nvfp4"}


def make(name):
    directory = tiny.OUT / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    with safe_open(tiny.REAL, framework="pt") as file:
        real = file.get_tensor("encoder.layer.0.intermediate.dense.original_f32_rows_0_128")
    layer = nn.Linear(32, 16)
    layer.weight, layer.bias = mx.array(real[:16, :32].numpy()), mx.linspace(-1, 1, 16)
    layer = nn.QuantizedLinear.from_linear(layer, **MODE)
    # As mlx-lm's SwitchLinear has the experts of a layer.
    experts = mx.array(torch.stack([real[:16, 32:48], real[16:32, 32:48] * 2, real[32:48, 32:48]]).numpy())
    codes, scales = mx.quantize(experts, **MODE)
    eight = mx.quantize(mx.array(real[:4, :32].numpy()), group_size=32, bits=8, mode="mxfp8")
    affine = mx.quantize(mx.array(real[:4, :32].numpy()), group_size=32, bits=4)
    tensors = {f"layers.0.mlp.down_proj.{part}": layer[part] for part in ("weight", "scales", "bias")}
    tensors |= {"layers.0.mlp.switch_mlp.up_proj.weight": codes, "layers.0.mlp.switch_mlp.up_proj.scales": scales}
    tensors |= dict(zip(["eight.weight", "eight.scales"], eight))
    tensors |= dict(zip(["affine.weight", "affine.scales", "affine.biases"], affine))
    mx.save_safetensors(str(directory / "model.safetensors"), tensors, metadata={"format": "mlx"})
    label = MODE | {
        "eight": {"group_size": 32, "bits": 8, "mode": "mxfp8"},
        "affine": {"group_size": 32, "bits": 4},
    }
    (directory / "config.json").write_text(json.dumps({"quantization": label, "quantization_config": label}))
    read = mx.load(str(directory / "model.safetensors"))
    dequantised = {}
    for module in ("layers.0.mlp.down_proj", "layers.0.mlp.switch_mlp.up_proj"):
        parts = [read[f"{module}.{part}"] for part in ("weight", "scales")]
        dequantised[module] = torch.from_numpy(numpy.array(mx.dequantize(*parts, dtype=mx.float32, **MODE)))
    tiny.finish(name, dequantised)


make("mlx")
