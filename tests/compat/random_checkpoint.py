"""A large checkpoint of random NVFP4 layers, as ModelOpt would write it: to measure `nvfp4-gemv load` with.

    python3 tests/compat/random_checkpoint.py FOLDER [GIB]
    nvfp4-gemv load FOLDER

Layers of a Llama of 8 billion parameters, in files of 2 GiB at most, until there are so many GiB (4). What is random is
a pattern that is written over and over, so that this takes seconds. No packages. CI does not run this.
"""

import json
import math
import pathlib
import random
import struct
import sys

LAYERS = [("self_attn.q_proj", 4096, 4096), ("self_attn.k_proj", 1024, 4096), ("self_attn.v_proj", 1024, 4096),
          ("self_attn.o_proj", 4096, 4096), ("mlp.gate_proj", 14336, 4096), ("mlp.up_proj", 14336, 4096),
          ("mlp.down_proj", 4096, 14336)]
PATTERN = 48 << 20
MOST = 2 << 30


def tensors_of(number):
    for name, rows, k in LAYERS:
        name = f"model.layers.{number}.{name}"
        yield f"{name}.weight", "U8", [rows, k // 2]
        yield f"{name}.weight_scale", "F8_E4M3", [rows, k // 16]
        yield f"{name}.weight_scale_2", "F32", []
        yield f"{name}.input_scale", "F32", []


def size(dtype, shape):
    return math.prod(shape) * (4 if dtype == "F32" else 1)


def write(path, tensors, codes, scales):
    header, end = {}, 0
    for name, dtype, shape in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size(dtype, shape)]}
        end += size(dtype, shape)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for at, (_, dtype, shape) in enumerate(tensors):
            if dtype == "F32":
                file.write(struct.pack("<f", 0.001))
                continue
            # Another beginning for each, so that no two are alike.
            of, left = (codes if dtype == "U8" else scales), size(dtype, shape)
            begin = at * 4099 % PATTERN
            while left > 0:
                part = of[begin:begin + left]
                file.write(part)
                left, begin = left - len(part), 0


def main(folder, gib="4"):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    codes = random.Random(1).randbytes(PATTERN)
    scales = codes.translate(bytes(1 + of % 0x7e for of in range(256)))  # positive numbers of E4M3
    codes, scales = memoryview(codes), memoryview(scales)
    files, total, in_file = [[]], 0, 0
    for number in range(10**6):
        of_layer = list(tensors_of(number))
        bytes_of_layer = sum(size(dtype, shape) for _, dtype, shape in of_layer)
        if total > 0 and total + bytes_of_layer > float(gib) * 2**30:
            break
        if files[-1] and in_file + bytes_of_layer > MOST:
            files.append([])
            in_file = 0
        files[-1] += of_layer
        in_file, total = in_file + bytes_of_layer, total + bytes_of_layer
    weight_map = {}
    for number, tensors in enumerate(files, 1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        write(folder / name, tensors, codes, scales)
        weight_map |= {tensor: name for tensor, _, _ in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (folder / "hf_quant_config.json").write_text(json.dumps(config))
    print(f"{folder}: {len(files)} files, {total / 1e9:.2f} GB in {len(weight_map)} tensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
