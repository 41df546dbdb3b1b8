#!/usr/bin/env python3
"""What other libraries take for the layers that `cargo xtask bench` measures, as JSON.

They are called through PyTorch: weights of bf16, FP8 (E4M3, one scale a tensor) and int8 times 1, 4 and 8 vectors
of the same type. Where a library wants more vectors than there are, zeros are added, and the entry says so. Nothing
else is needed than PyTorch and a GPU. It takes half a minute on an H200.

Measured as docs/benchmarks.md says: cold, by CUDA events, one CUDA graph of 48 calls or more that take turns over
4 GiB of weights, in rounds in which all ways to compute a layer take turns; medians. A way that a library refuses,
or that gives wrong results, is an entry that says why.
"""

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import time

SCHEMA = "nvfp4-gemv/others/1"

# Rows, elements of a row, batches: those of `nvfp4-gemv bench --suite all`.
SHAPES = [
    (7168, 16384, 1),
    (4096, 7168, 8),
    (7168, 2048, 4),
    (4096, 4096, 1),
    (14336, 4096, 1),
    (4096, 14336, 1),
    (28672, 8192, 1),
    (8192, 28672, 1),
]
VECTORS = [1, 4, 8]

# Calls in a graph, at least.
LAUNCHES = 48
# Rounds that are not counted.
WARM_UP = 2
# The GPU rests for so many times as long as the timed replay took, so that it stays far from its power limit.
REST = 2.0
# How far a result may be off, of the largest: FP8 is summed with few bits over long rows.
TOLERANCE = 0.1


class Way:
    """One way to compute a layer.

    `prepare(torch, x)` makes of x, of shape L x n x K, what the calls take. `call(torch, w, x)` computes
    L x n x M, or more rows than n where the library wants them, from w of shape L x M x K.
    """

    def __init__(self, name, weights, prepare, call, padded_n=None, only=lambda n, batches: True):
        self.name = name
        self.weights = weights
        self.prepare = prepare
        self.call = call
        # The number of vectors that are computed, where the library wants more than there are.
        self.padded_n = padded_n
        # For which numbers of vectors and batches there is this way.
        self.only = only


def each(function):
    """A call for every batch, of libraries that know none."""
    return lambda torch, w, x: [function(torch, w[i], x[i]) for i in range(w.shape[0])]


def as_it_is(torch, x):
    return x


def padded(rows):
    """The vectors, and as many zeros as make `rows` of them."""

    def prepare(torch, x):
        more = torch.zeros(x.shape[0], rows, x.shape[2], dtype=torch.float32, device=x.device)
        more[:, : x.shape[1]] = x.float()
        return more.to(x.dtype)

    return prepare


def linear(torch, w, x):
    return torch.nn.functional.linear(x, w)


def linear_by_lt(torch, w, x):
    """The same with cuBLASLt, where PyTorch would take cuBLAS."""
    prefer = torch.backends.cuda.preferred_blas_library
    before = prefer()
    prefer("cublaslt")
    try:
        return linear(torch, w, x)
    finally:
        prefer(before)


def linear_1d(torch, w, x):
    return torch.nn.functional.linear(x[0], w)


def scaled_mm(torch, w, x):
    one = scaled_mm.one
    # Older versions return a pair.
    y = torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
    return y[0] if isinstance(y, tuple) else y


def int_mm(torch, w, x):
    return torch._int_mm(x, w.t())


def batched(torch, w, x):
    return torch.bmm(x, w.transpose(1, 2))


def alone(n, batches):
    return n == 1


def in_batches(n, batches):
    return batches > 1


def ways():
    """All of them. Of those with the same weights, a reader takes the fastest."""
    return [
        Way("torch.nn.functional.linear", "bf16", as_it_is, each(linear)),
        Way("torch.nn.functional.linear, cuBLASLt", "bf16", as_it_is, each(linear_by_lt)),
        Way("torch.nn.functional.linear, 1-D vector", "bf16", as_it_is, each(linear_1d), only=alone),
        Way("torch.bmm", "bf16", as_it_is, batched, only=in_batches),
        Way("torch._scaled_mm", "fp8", as_it_is, each(scaled_mm)),
        Way("torch._scaled_mm, padded to 16 vectors", "fp8", padded(16), each(scaled_mm), padded_n=16),
        # It wants more than 16 vectors, so that fewer take as long as one.
        Way("torch._int_mm, padded to 32 vectors", "int8", padded(32), each(int_mm), padded_n=32, only=alone),
    ]


def why(error):
    """An error in one line, without control characters."""
    text = " ".join(str(error).split()) or "no message"
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return f"{type(error).__name__}: {printable[:300]}"


def random_elements(torch, weights, count):
    """`count` random elements on the device, a part at a time: what is drawn from is larger than they are."""
    types = {"bf16": "bfloat16", "fp8": "float8_e4m3fn", "int8": "int8"}
    dtype = getattr(torch, types[weights])
    pool = torch.empty(count, dtype=dtype, device="cuda")
    part = 1 << 26
    for begin in range(0, count, part):
        length = min(part, count - begin)
        if weights == "int8":
            drawn = torch.randint(-127, 128, (length,), device="cuda", dtype=torch.int8)
        else:
            drawn = torch.randn(length, device="cuda", dtype=torch.float32).to(dtype)
        pool[begin : begin + length] = drawn
    return pool


class Weights:
    """A pool of weights of each type, from which the copies of every layer are cut."""

    def __init__(self, torch, cold_bytes):
        self.torch = torch
        self.cold_bytes = cold_bytes
        self.pools = {}
        # Why there is none: not tried again.
        self.failed = {}

    def copies(self, weights, m, k, batches):
        """Views of shape L x M x K, one behind the other, of `cold_bytes` together or somewhat more."""
        size = 2 if weights == "bf16" else 1
        elements = batches * m * k
        count = -(-self.cold_bytes // (elements * size))
        used = self.pool(weights, size)[: count * elements]
        return list(used.view(count, batches, m, k).unbind(0))

    def pool(self, weights, size):
        if weights in self.failed:
            raise RuntimeError(self.failed[weights])
        if weights not in self.pools:
            largest = max(m * k * batches for m, k, batches in SHAPES)
            try:
                count = self.cold_bytes // size + largest
                self.pools[weights] = random_elements(self.torch, weights, count)
            except Exception as error:
                self.failed[weights] = f"no weights: {why(error)}"
                raise RuntimeError(self.failed[weights]) from error
        return self.pools[weights]


def vectors(torch, weights, n, k, batches):
    return random_elements(torch, weights, batches * n * k).view(batches, n, k)


def check(torch, w, x, y, n):
    """Compares with a product in f32, of the first copy: enough to see that the right thing is computed."""
    # One batch after the other, and some rows: all of them in f32 would take gigabytes.
    for i in range(w.shape[0]):
        got = y[i].reshape(-1, w.shape[1])[:n, :256].float()
        right = x[i, :n].float() @ w[i, :256].float().t()
        error = float((got - right).abs().max() / right.abs().max())
        # NaN is no pass.
        if not error < TOLERANCE:
            raise ValueError(f"wrong results: off by {error:.3g} of the largest")


class Turns:
    """A way's graph for a layer, and its samples."""

    def __init__(self, torch, way, copies, x, n):
        self.torch = torch
        x = way.prepare(torch, x)
        self.launches = -(-max(LAUNCHES, len(copies)) // len(copies)) * len(copies)
        self.samples_us = []
        self.error = None
        # Libraries set themselves up outside the graph, on the stream that captures.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                y = way.call(torch, copies[0], x)
        stream.synchronize()
        check(torch, copies[0], x, y, n)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for i in range(self.launches):
                # What it returns is freed at once, and the graph's pool gives it out again.
                way.call(torch, copies[i % len(copies)], x)
        self.x = x
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def turn(self):
        """One replay to warm up, one that is timed: microseconds a call."""
        begin, end = self.events
        self.graph.replay()
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        ms = begin.elapsed_time(end)
        time.sleep(REST * ms / 1e3)
        return ms * 1e3 / self.launches


def six_digits(value):
    return float(f"{value:.6g}")


def measure(torch, weights, shape, n, rounds):
    """All ways to compute one layer with n vectors: an entry each."""
    m, k, batches = shape
    entries, running = [], []
    for way in ways():
        if not way.only(n, batches):
            continue
        entry = {"m": m, "k": k, "l": batches, "n": n, "weights": way.weights, "call": way.name}
        if way.padded_n:
            entry["padded_n"] = way.padded_n
        entries.append(entry)
        try:
            copies = weights.copies(way.weights, m, k, batches)
            x = vectors(torch, way.weights, n, k, batches)
            turns = Turns(torch, way, copies, x, n)
        except Exception as error:
            entry["error"] = why(error)
            recover(torch)
            continue
        size = 2 if way.weights == "bf16" else 1
        entry["weight_bytes"] = m * k * batches * size
        entry["rotated_bytes"] = entry["weight_bytes"] * len(copies)
        entry["launches_per_round"] = turns.launches
        running.append((entry, turns))
    for i in range(WARM_UP + rounds):
        for entry, turns in running if i % 2 == 0 else running[::-1]:
            if turns.error:
                continue
            try:
                us = turns.turn()
            except Exception as error:
                turns.error = why(error)
                continue
            if i >= WARM_UP:
                turns.samples_us.append(us)
    for entry, turns in running:
        if turns.error:
            entry["error"] = turns.error
            continue
        median = statistics.median(turns.samples_us)
        entry["median_us"] = six_digits(median)
        entry["gb_per_s"] = six_digits(entry["weight_bytes"] / median / 1e3)
        entry["samples_us"] = [six_digits(us) for us in turns.samples_us]
    return entries


def recover(torch):
    """What a failed call left behind must not fail the next one, where that can be helped."""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception:
        pass


def driver():
    """The driver's version, as nvidia-smi knows it."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        return output.stdout.split("\n")[0].strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def document(torch, args):
    torch.manual_seed(0)
    scaled_mm.one = torch.ones((), dtype=torch.float32, device="cuda")
    weights = Weights(torch, int(args.cold_gib * (1 << 30)))
    cases = []
    for shape in SHAPES:
        for n in VECTORS:
            entries = measure(torch, weights, shape, n, args.rounds)
            cases += entries
            print("x".join(map(str, shape)), f"n={n}", file=sys.stderr)
            for entry in entries:
                result = entry.get("error") or f"{entry['median_us']:.2f} us"
                print(f"    {entry['weights']:5} {entry['call']}: {result}", file=sys.stderr)
    now = datetime.datetime.now(datetime.timezone.utc)
    capability = torch.cuda.get_device_capability()
    return {
        "schema": SCHEMA,
        "date_utc": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "device": {
            "name": torch.cuda.get_device_name(),
            "compute_capability": f"{capability[0]}.{capability[1]}",
            "driver": driver(),
        },
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "method": {"rounds": args.rounds, "cold_bytes": weights.cold_bytes},
        "cases": cases,
    }


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", metavar="FILE", help="where the JSON goes (default: standard output)")
    parser.add_argument("--rounds", type=int, default=11, help="that count (default: 11)")
    parser.add_argument(
        "--cold-gib", type=float, default=4.0, help="GiB of weights to take turns over (default: 4)"
    )
    args = parser.parse_args()
    if args.rounds < 1 or not 0 < args.cold_gib < 1024:
        parser.error("--rounds must be at least 1, and --cold-gib positive")
    return args


def main():
    args = arguments()
    try:
        import torch
    except ImportError as error:
        sys.exit(f"error: PyTorch is needed: {error}")
    if not torch.cuda.is_available():
        sys.exit("error: PyTorch finds no NVIDIA GPU")
    # A file that cannot be written is found before anything is measured.
    with open(args.out, "w", encoding="utf-8") if args.out else sys.stdout as out:
        with torch.inference_mode():
            result = document(torch, args)
        out.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
