"""How long `nvfp4-gemv inspect` takes for a checkpoint of 370,080 tensors, and how much memory.

    cargo build --release -p nvfp4-gemv-cli
    python3 tests/compat/many_tensors.py target/release/nvfp4-gemv [TENSORS...]

The checkpoint has headers alone: its data take no room on the disk. It is a mixture of experts in 92 files with an index,
as compressed-tensors or ModelOpt would write it, with a config that excludes 500 modules by patterns. More numbers of
tensors may be named, to see how time grows with them. Linux; no packages. CI does not run this.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

FILES = 92
PARTS = ["gate_proj", "up_proj", "down_proj"]
TENSORS = [("input_scale", "F32", [], 4), ("weight", "U8", [2048, 3584], 2048 * 3584),
           ("weight_scale", "F8_E4M3", [2048, 448], 2048 * 448), ("weight_scale_2", "F32", [], 4)]
EXPERTS = 385


def write_model(folder, total):
    """Whole experts, so many that there are about as many tensors; returns how many there are."""
    modules = [f"model.layers.{at // EXPERTS}.mlp.experts.{at % EXPERTS}.{part}"
               for at in range(total // 12) for part in PARTS]
    each = -(-len(modules) // FILES)
    weight_map = {}
    for number in range(FILES):
        name = f"model-{number + 1:05}-of-{FILES:05}.safetensors"
        header, end = {}, 0
        for module in modules[number * each:(number + 1) * each]:
            for suffix, dtype, shape, size in TENSORS:
                header[f"{module}.{suffix}"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
                weight_map[f"{module}.{suffix}"] = name
                end += size
        text = json.dumps(header).encode()
        with open(folder / name, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    excluded = [f"model.layers.{at}.self_attn*" for at in range(500)]
    config = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": excluded}}
    (folder / "hf_quant_config.json").write_text(json.dumps(config))
    return len(weight_map)


def measured(command):
    """Seconds, seconds of a CPU, and MB at most of a program that must succeed."""
    begin = time.monotonic()
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(program.pid, 0)
    seconds = time.monotonic() - begin
    program.returncode = os.waitstatus_to_exitcode(status)
    assert program.returncode == 0, command
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6


def main():
    program, totals = sys.argv[1], [int(total) for total in sys.argv[2:]] or [370_080]
    # Sparse files of terabytes: the limit of a process's own is not in the way.
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for total in totals:
        with tempfile.TemporaryDirectory() as folder:
            tensors = write_model(pathlib.Path(folder), total)
            for options in [[], ["--json"]]:
                command = [program, "inspect", folder, *options]
                measured(command)  # warm
                runs = sorted(measured(command) for _ in range(5))
                seconds, cpu, memory = runs[2]
                print(f"{tensors} tensors, inspect {' '.join(options) or 'as a table'}: median of 5 {seconds:.2f} s, "
                      f"{cpu:.2f} s of a CPU, {memory:.0f} MB at most")


main()
