"""Tiny models that exporters quantise, and what both scripts beside this one share."""

import json
import pathlib

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

# The folder that the checkpoints are written to.
OUT = pathlib.Path(__file__).resolve().parent.parent
# Rows of a matrix of a real model, unquantised.
REAL = OUT.parent / "minilm-l0-modelopt.safetensors"

SIZES = dict(
    vocab_size=32,
    hidden_size=80,  # five blocks of 16
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)


def dense():
    """A Llama whose linear layers are pieces of a real model's matrix, in bf16 as models are published."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    with safe_open(REAL, framework="pt") as file:
        real = file.get_tensor("encoder.layer.0.intermediate.dense.original_f32_rows_0_128")
    linear = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]
    with torch.no_grad():
        for at, layer in enumerate(linear):
            rows, columns = layer.weight.shape
            first = at * 40 % (real.shape[1] - columns)
            # Parts of a fused layer differ in size, so that their global scales do.
            layer.weight.copy_(real[:rows, first : first + columns] * (1 + at / 4))
    return finished(model)


def finished(model):
    model.config.architectures = [type(model).__name__]
    return model.to(torch.bfloat16)


def experts(in_one_tensor):
    """A mixture of four random experts: in one tensor each of their parts, as transformers has them, or modules of their
    own, as llm-compressor makes them before it quantises."""
    torch.manual_seed(1)
    sizes = SIZES | dict(hidden_size=64, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes))
    with torch.no_grad():
        for at, weight in enumerate(model.parameters()):
            weight.copy_(torch.randn_like(weight) * (0.02 + 0.005 * at))
        if not in_one_tensor:
            for layer in model.model.layers:
                layer.mlp.experts = apart(layer.mlp.experts)
    return finished(model)


def apart(experts):
    """Experts of one tensor each as modules of their own."""

    def linear(weight):
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight.copy_(weight)
        return layer

    modules = []
    for gate_up, down in zip(experts.gate_up_proj, experts.down_proj):
        gate, up = gate_up.chunk(2)
        parts = {"gate_proj": linear(gate), "up_proj": linear(up), "down_proj": linear(down)}
        modules.append(torch.nn.ModuleDict(parts))
    return torch.nn.ModuleList(modules)


def run(model):
    """Runs tokens through a model, for calibration."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _ in range(4):
            model(torch.randint(0, SIZES["vocab_size"], (2, 16), generator=generator))


def finish(name, dequantised, same_as=None):
    """Writes what the package dequantises, beside the directory `name`, or makes sure that it is that of `same_as`. Makes
    what was written independent of machine and day."""
    directory = OUT / name
    for file in directory.glob("*"):
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as old:
                metadata = old.metadata()
            save_file(load_file(file), file, metadata=metadata)
        elif file.name in ("config.json", "hf_quant_config.json"):
            text = json.dumps(json.loads(file.read_text()), indent=1, sort_keys=True)
            file.write_text(text + "\n")
        else:
            file.unlink()
    tensors = {layer: weight.to(torch.float32).contiguous() for layer, weight in dequantised.items()}
    if same_as:
        expected = load_file(OUT / f"{same_as}.expected.safetensors")
        assert expected.keys() == tensors.keys()
        assert all(torch.equal(expected[layer], tensors[layer]) for layer in tensors)
    else:
        save_file(tensors, OUT / f"{name}.expected.safetensors")
    print(name, *sorted(tensors))
