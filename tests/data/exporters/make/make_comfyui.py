"""Makes the checkpoints `comfyui-*`: comfy-kitchen, whose formats ComfyUI writes, quantises pieces of a real matrix and
dequantises what it quantised. ComfyUI itself is no package; its marks are as its `ops.py` writes them.

    pip install torch==2.12.1 transformers==5.14.1 safetensors comfy-kitchen==0.2.40
    python make_comfyui.py
"""

import json
import shutil

import torch
from comfy_kitchen.tensor import TensorCoreNVFP4Layout
from safetensors import safe_open
from safetensors.torch import save_file

import tiny

MARK = {"format": "nvfp4"}


def make(name, layers, marks_in_metadata):
    """Layers [rows, columns], with rows that are padded to a multiple of 16 and scales that are padded to 128 rows."""
    directory = tiny.OUT / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    with safe_open(tiny.REAL, framework="pt") as file:
        real = file.get_tensor("encoder.layer.0.intermediate.dense.original_f32_rows_0_128")
    tensors, dequantised = {}, {}
    for at, (layer, (rows, columns)) in enumerate(layers.items()):
        weight = torch.cat([real, real.flip(1)])[:rows, at * 16 : at * 16 + columns].contiguous()
        codes, params = TensorCoreNVFP4Layout.quantize(weight)
        for suffix, tensor in TensorCoreNVFP4Layout.state_dict_tensors(codes, params).items():
            tensors[f"{layer}.weight{suffix}"] = tensor
        tensors[f"{layer}.bias"] = torch.linspace(-1, 1, rows)
        if not marks_in_metadata:
            mark = MARK | {"full_precision_matrix_mult": True} if at else MARK
            tensors[f"{layer}.comfy_quant"] = torch.tensor(list(json.dumps(mark).encode()), dtype=torch.uint8)
            tensors[f"{layer}.pre_quant_scale"] = torch.linspace(0.5, 2, columns, dtype=torch.bfloat16)
        dequantised[layer] = TensorCoreNVFP4Layout.dequantize(codes, params)[:rows]
    metadata = {"format": "pt"}
    if marks_in_metadata:
        said = {"format_version": "1.0", "layers": {layer: MARK for layer in layers}}
        metadata["_quantization_metadata"] = json.dumps(said)
    save_file(tensors, directory / "model.safetensors", metadata=metadata)
    tiny.finish(name, dequantised)


make("comfyui-tensors", {"blocks.0.mlp": (40, 80), "blocks.1.mlp": (16, 48)}, False)
make("comfyui-metadata", {"double_blocks.0.img_attn.qkv": (136, 64)}, True)
