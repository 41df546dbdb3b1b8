"""Makes the checkpoint `torchao`: torchao quantises pieces of a real matrix, writes them as transformers does, and
dequantises what it wrote.

    pip install torch==2.12.1 transformers==5.14.1 safetensors torchao==0.18.0
    python make_torchao.py
"""

import json
import shutil

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torchao.prototype.mx_formats import NVFP4DynamicActivationNVFP4WeightConfig, NVFP4WeightOnlyConfig
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict, unflatten_tensor_state_dict
from torchao.quantization import quantize_

import tiny


def model():
    """Layers of every kind that torchao writes: scales in its 128x4 layout, of two tiles of rows, or of columns, or
    linear; with and without a scale of the tensor, and of the vectors."""
    with safe_open(tiny.REAL, framework="pt") as file:
        real = file.get_tensor("encoder.layer.0.intermediate.dense.original_f32_rows_0_128")
    real = torch.cat([real, real.flip(1)])
    layers = {}
    for at, (name, (rows, columns)) in enumerate({"calibrated": (144, 16), "weights": (16, 80), "linear": (16, 32)}.items()):
        layer = torch.nn.Linear(columns, rows, bias=at == 2)
        with torch.no_grad():
            layer.weight.copy_(real[:rows, at * 16 : at * 16 + columns] * (1 + at))
            if at == 2:
                layer.bias.copy_(torch.linspace(-1, 1, rows))
        layers[name] = layer.to(torch.bfloat16)
    model = torch.nn.ModuleDict(layers)

    only = lambda wanted: lambda module, name: name == wanted
    config = NVFP4DynamicActivationNVFP4WeightConfig
    quantize_(model, config(step="prepare", use_triton_kernel=False), filter_fn=only("calibrated"))
    model["calibrated"](torch.linspace(-3, 3, 32, dtype=torch.bfloat16).reshape(2, 16))
    converted = lambda module, name: name == "calibrated"
    quantize_(model, config(step="convert", use_triton_kernel=False), filter_fn=converted)
    quantize_(model, NVFP4WeightOnlyConfig(), filter_fn=only("weights"))
    linear = model["linear"]
    weight = NVFP4Tensor.to_nvfp4(linear.weight.detach())
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    return model


def make(name):
    directory = tiny.OUT / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    state = {f"blocks.{key}": value.detach() for key, value in model().state_dict().items()}
    tensors, metadata = flatten_tensor_state_dict(state)
    metadata = dict(sorted(metadata.items())) | {"format": "pt"}
    save_file(tensors, directory / "model.safetensors", metadata=metadata)
    label = {
        "include_input_output_embeddings": False,
        "modules_to_not_convert": None,
        "quant_method": "torchao",
        "quant_type": {
            "default": {"_data": {"use_dynamic_per_tensor_scale": True}, "_type": "NVFP4WeightOnlyConfig", "_version": 1}
        },
        "untie_embedding_weights": False,
    }
    (directory / "config.json").write_text(json.dumps({"quantization_config": label}))
    with safe_open(directory / "model.safetensors", framework="pt") as file:
        metadata = file.metadata()
    read, left = unflatten_tensor_state_dict(load_file(directory / "model.safetensors"), metadata)
    assert not left
    weights = {key.removesuffix(".weight"): w for key, w in read.items() if key.endswith(".weight")}
    tiny.finish(name, {key: weight.dequantize(torch.float32) for key, weight in weights.items()})


make("torchao")
