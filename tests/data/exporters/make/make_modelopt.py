"""Makes the checkpoints `modelopt-*`: ModelOpt quantises tiny models, exports them, and dequantises what it exported.

    pip install torch==2.12.1 transformers==5.14.1 nvidia-modelopt==0.47.0 safetensors
    python make_modelopt.py

No GPU is needed. ModelOpt quantises vectors on the way, which only AWQ's search does, with kernels for GPUs alone.
`on_a_cpu` puts ModelOpt's own quantiser of tensors in their place; it decides which factors AWQ finds, and nothing of
how layers are written.
"""

import copy
import shutil

import modelopt.torch.quantization as mtq
import modelopt.torch.quantization.tensor_quant as tensor_quant
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import NVFP4QTensor
from safetensors.torch import load_file

import tiny

BLOCK = 16


def on_a_cpu(x, block_size, amax, *_, **__):
    """What the kernels for GPUs give: x, quantised to NVFP4 and back."""
    double_scale = amax.float().amax() / (6 * 448)
    codes, scale, double_scale = NVFP4QTensor.quantize(x.clone(), block_size, None, double_scale)
    return codes.dequantize(x.dtype, scale=scale, double_scale=double_scale, block_sizes={-1: block_size})


tensor_quant.dynamic_block_quantize_op = on_a_cpu


def dequantised(directory):
    """The layers that were written, as ModelOpt dequantises them."""
    tensors = load_file(directory / "model.safetensors")
    found = {}
    for name in [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]:
        codes, scale = tensors[f"{name}.weight"], tensors.get(f"{name}.weight_scale")
        if codes.dtype == torch.uint8:
            shape = torch.Size([codes.shape[0], codes.shape[1] * 2])
            quantised = NVFP4QTensor(shape, torch.float32, codes)
            found[name] = quantised.dequantize(
                torch.float32, scale=scale, double_scale=tensors[f"{name}.weight_scale_2"], block_sizes={-1: BLOCK}
            )
    return found


def make(name, model, config, same_as=None):
    config = copy.deepcopy(config)
    directory = tiny.OUT / name
    shutil.rmtree(directory, ignore_errors=True)
    model = mtq.quantize(model, config, tiny.run)
    export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=directory)
    tiny.finish(name, dequantised(directory), same_as)


def mixed():
    """MLPs in NVFP4, attention in FP8."""
    config = copy.deepcopy(mtq.NVFP4_MLP_ONLY_CFG)
    fp8 = {"num_bits": (4, 3), "axis": None}
    for quantizer in ("weight", "input"):
        config["quant_cfg"].append({"quantizer_name": f"*self_attn*{quantizer}_quantizer", "cfg": fp8})
    return config


make("modelopt-nvfp4", tiny.dense(), mtq.NVFP4_DEFAULT_CFG)
make("modelopt-w4a16", tiny.dense(), mtq.W4A16_NVFP4_CFG, same_as="modelopt-nvfp4")
make("modelopt-awq", tiny.dense(), mtq.NVFP4_AWQ_LITE_CFG)
make("modelopt-mixed", tiny.dense(), mixed())
make("modelopt-experts", tiny.experts(in_one_tensor=True), mtq.NVFP4_DEFAULT_CFG)
