"""Makes the checkpoints `compressed-tensors-*`: compressed-tensors compresses tiny models, writes them, and dequantises
what it wrote.

    pip install torch==2.12.1 transformers==5.14.1 compressed-tensors==0.20.0 safetensors
    python make_compressed_tensors.py

Scales come from each weight's largest element, as llm-compressor's one-shot NVFP4 scheme takes them.
"""

import shutil

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import load_file

import tiny


def set_scales(model, fused):
    """Each weight's scales; those of a fused layer's parts are the same where `fused`."""
    modules = {name: module for name, module in model.named_modules() if hasattr(module, "quantization_scheme")}
    groups = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")] if fused else []
    with torch.no_grad():
        for name, module in modules.items():
            parent, _, part = name.rpartition(".")
            group = next((group for group in groups if part in group), (part,))
            weights = [modules[f"{parent}.{part}"].weight.float() for part in group]
            args = module.quantization_scheme.weights
            weight = module.weight.float()
            if not hasattr(module, "weight_global_scale"):
                scale, _ = calculate_qparams(weight.amin(-1, True), weight.amax(-1, True), args)
                module.weight_scale.copy_(scale)
                continue
            least = min(weight.min() for weight in weights)
            most = max(weight.max() for weight in weights)
            global_scale = generate_gparam(least.reshape(1), most.reshape(1))
            module.weight_global_scale.copy_(global_scale)
            blocks = weight.unflatten(-1, (-1, args.group_size))
            scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, global_scale)
            module.weight_scale.copy_(scale)
            if hasattr(module, "input_global_scale"):
                module.input_global_scale.copy_(generate_gparam(torch.tensor([-4.0]), torch.tensor([4.0])))


def dequantised(directory, schemes):
    """The layers that were written, as compressed-tensors dequantises them, in f32."""
    tensors = load_file(directory / "model.safetensors")
    found = {}
    for name in [name.removesuffix(".weight_packed") for name in tensors if name.endswith(".weight_packed")]:
        codes = tensors[f"{name}.weight_packed"]
        rows, half = codes.shape
        found[name] = dequantize(
            x_q=unpack_fp4_from_uint8(codes, rows, half * 2, torch.float32),
            scale=tensors[f"{name}.weight_scale"].to(torch.float32),
            global_scale=tensors[f"{name}.weight_global_scale"],
            args=schemes[name].weights,
            dtype=torch.float32,
        )
    return found


def make(name, model, groups, ignore=("lm_head",), fused=False):
    directory = tiny.OUT / name
    shutil.rmtree(directory, ignore_errors=True)
    config = QuantizationConfig(config_groups=groups, ignore=list(ignore))
    apply_quantization_config(model, config)
    set_scales(model, fused)
    schemes = {name: m.quantization_scheme for name, m in model.named_modules() if hasattr(m, "quantization_scheme")}
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(directory)
    compressor.update_config(directory)
    tiny.finish(name, dequantised(directory, schemes))


make("compressed-tensors-nvfp4", tiny.dense(), {"group_0": preset_name_to_scheme("NVFP4", ["Linear"])}, fused=True)
make("compressed-tensors-nvfp4a16", tiny.dense(), {"group_0": preset_name_to_scheme("NVFP4A16", ["Linear"])})
make(
    "compressed-tensors-mixed",
    tiny.dense(),
    {
        "group_0": preset_name_to_scheme("FP8_DYNAMIC", ["re:.*self_attn.*"]),
        "group_1": preset_name_to_scheme("NVFP4", ["re:.*mlp.*"]),
    },
)
make(
    "compressed-tensors-experts",
    tiny.experts(in_one_tensor=False),
    {"group_0": preset_name_to_scheme("NVFP4", ["Linear"])},
    ignore=("lm_head", "re:.*mlp[.]gate$"),
)
