"""Loads what `nvfp4-gemv quantize --to` writes with ModelOpt's and compressed-tensors' own packages, and compares.

    python3 -m venv venv
    venv/bin/pip install torch==2.12.1 nvidia-modelopt==0.47.0 compressed-tensors==0.20.0 safetensors numpy
    cargo build --release -p nvfp4-gemv-cli
    venv/bin/python tests/compat/packages.py target/release/nvfp4-gemv [MODEL_DIRECTORY_OR_GGUF...]

A dense model and a mixture of experts of random numbers are made; more models may be named. Each is quantised in both
dialects. Of each layer the package's dequantised weight is compared with the definition: code times block scale times
global scale. ModelOpt's is f32, compressed-tensors' bf16: they must agree but for the rounding of those. ModelOpt's own
conversion of hf_quant_config.json must give what config.json says. CI does not run this.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
HIDDEN = 128


def random_model(folder, experts):
    """Two files, and a config."""
    torch.manual_seed(experts)
    folder.mkdir()

    def normal(*shape):
        return (torch.randn(*shape) * 0.05).to(torch.bfloat16)

    first = {"model.embed_tokens.weight": normal(64, HIDDEN), "lm_head.weight": normal(64, HIDDEN)}
    at = "model.layers.0"
    for part in "qkvo":
        first[f"{at}.self_attn.{part}_proj.weight"] = normal(HIDDEN, HIDDEN)
    second = {f"{at}.input_layernorm.weight": torch.ones(HIDDEN)}
    if experts:
        second[f"{at}.mlp.gate.weight"] = normal(experts, HIDDEN)
        second[f"{at}.mlp.experts.gate_up_proj"] = normal(experts, 192, HIDDEN)
        second[f"{at}.mlp.experts.down_proj"] = normal(experts, HIDDEN, 96)
    else:
        for part, shape in [("gate", (192, HIDDEN)), ("up", (192, HIDDEN)), ("down", (HIDDEN, 192))]:
            second[f"{at}.mlp.{part}_proj.weight"] = normal(*shape)
    places = {}
    for number, tensors in enumerate([first, second], 1):
        name = f"model-{number:05}-of-00002.safetensors"
        save_file(tensors, folder / name, metadata={"format": "pt"})
        places |= {tensor: name for tensor in tensors}
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "hidden_size": HIDDEN}))
    return folder


def load(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys()}
    return tensors


def defined(codes, scales, multiplier):
    """Code times block scale times global scale, in f64."""
    rows = codes.shape[0]
    pairs = torch.stack([codes & 15, codes >> 4], dim=-1).reshape(rows, -1)
    return VALUES[pairs.long()] * scales.double().repeat_interleave(16, dim=1) * multiplier


def modelopt(folder, tensors):
    from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    label = json.loads((folder / "hf_quant_config.json").read_text())
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    converted = convert_hf_quant_config_format(label)
    assert config == converted, f"{config}\n{converted}"
    layers = [name.removesuffix(".weight_scale_2") for name in tensors if name.endswith(".weight_scale_2")]
    for layer in layers:
        codes, scales = tensors[f"{layer}.weight"], tensors[f"{layer}.weight_scale"]
        multiplier = tensors[f"{layer}.weight_scale_2"]
        shape = torch.Size([codes.shape[0], codes.shape[1] * 2])
        quantised = NVFP4QTensor(shape, torch.float32, codes)
        found = quantised.dequantize(
            dtype=torch.float32, scale=scales, double_scale=multiplier, block_sizes={-1: 16}
        ).double()
        expected = defined(codes, scales, multiplier.double())
        assert ((found - expected).abs() <= 2**-22 * expected.abs()).all(), layer
    return layers


def compressed_tensors(folder, tensors):
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(config)
    # Modules of the names that there are: linear layers, and what is left.
    model = torch.nn.Module()
    layers = []
    for name, tensor in tensors.items():
        stem, _, ending = name.rpartition(".")
        if ending not in ("weight", "weight_packed") or tensor.dim() != 2:
            continue
        module = model
        *path, last = stem.split(".")
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = getattr(module, part)
        columns = tensor.shape[1] * (2 if ending == "weight_packed" else 1)
        module.add_module(last, torch.nn.Linear(columns, tensor.shape[0], bias=False, dtype=torch.bfloat16))
        if ending == "weight_packed":
            layers.append(stem)
    # As transformers does before it loads weights: the layers get the parameters of compressed ones.
    apply_quantization_config(model, config)
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    own = {name: tensor for name, tensor in tensors.items() if name in model.state_dict()}
    missing, _ = model.load_state_dict(own, strict=False)
    assert not missing, missing
    compressor.decompress_model(model)
    for layer in layers:
        found = model.get_submodule(layer).weight.double()
        divisor = tensors[f"{layer}.weight_global_scale"].double()
        scales = tensors[f"{layer}.weight_scale"]
        expected = defined(tensors[f"{layer}.weight_packed"], scales, 1 / divisor)
        # A bf16 has 8 bits; f32 was rounded before.
        assert ((found - expected).abs() <= (2**-8 + 2**-22) * expected.abs()).all(), layer
    return layers


def main():
    program, *models = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        sources = [random_model(folder / "dense", 0), random_model(folder / "moe", 4)]
        for source in [*sources, *map(pathlib.Path, models)]:
            for dialect, check in [("modelopt", modelopt), ("compressed-tensors", compressed_tensors)]:
                out = folder / "out" / f"{source.stem}-{dialect}"
                out.parent.mkdir(exist_ok=True)
                command = [program, "quantize", source, "--to", out, "--dialect", dialect, "--json"]
                report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                layers = check(out, load(out))
                assert sorted(layers) == sorted(one["name"] for one in report["layers"])
                print(f"{source.stem}, {dialect}: {len(layers)} layers agree")


main()
