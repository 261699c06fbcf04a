"""Measures pickled checkpoints next to safetensors: throughput of exact mode, and the cost of opening a large file on the Hub."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.hub.process import HubProcess

from .child import quantity, run
from .model_files import make
from .result import Result

RUNS = 5
LAYERS = 10  # a checkpoint of about 1.1 GB in bf16
WITHIN = 0.8  # target share of the throughput of safetensors
TENSORS, ELEMENTS = 300, 8_400_000  # 5 GB in bf16
OPENING = 5_000_000  # bytes
BUDGET = 64_000_000


def pickled(folder: Path) -> Iterator[Result]:
    """Measure the same weights in both formats and both layouts of torch.save; then a file of 5 GB on the local Hub."""
    safe = make(folder / "safe", LAYERS)
    for layout in ("zip", "legacy"):
        run(["-m", "tests.benchmarks.pickled", layout, str(safe), str(folder / layout)])
        for path in (safe / "model.safetensors", folder / layout / "pytorch_model.bin"):
            _read_back(path)
        # Alternating, so that other load on the machine affects both.
        pairs = [(_rate(folder / layout), _rate(safe)) for _ in range(RUNS + 1)][1:]
        ours, naive = (max(rates) for rates in zip(*pairs, strict=True))
        ratio = ours / naive
        rates = [quantity(rate / 1e9, "GB/s") for rate in (ours, naive)]
        yield Result(f"exact, pickled ({layout}), against safetensors", rates[0], rates[1], ratio, f">= {WITHIN}", ratio >= WITHIN)
    for layout in ("zip", "legacy"):
        large = folder / f"large-{layout}"
        run(["-m", "tests.benchmarks.pickled", f"hole-{layout}", "", str(large)])
        with HubProcess("--folder", f"org/large={large}", "--delay", "0.05") as hub:
            done = run(["-m", "analyzers", "dtype", "org/large", "--budget", str(BUDGET), "--json"], variables=hub.environ(folder))
            totals = hub.totals()
        opening, requests = totals["bytes"] - done.json["bytes_read"], totals["requests"] - done.json["requests"]
        size = done.json["checkpoint"]["bytes"] / 1e9
        yield Result(f"quick, {size:.1f} GB pickled ({layout}) on the Hub", quantity(done.seconds, "s"))
        said = f"{opening / 1e6:.2f} MB, {requests} requests"
        yield Result("  beside the sample", said, "", None, f"< {OPENING / 1e6:.0f} MB, < 40", opening < OPENING and requests < 40)


def _read_back(path: Path) -> None:
    """Put the file into the page cache by reading it, since the cache keeps many small writes in small pieces.

    Small pieces take time to map: without this, the same pickle was a tenth slower.
    """
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.read(8 << 20):
            pass


def _rate(checkpoint: Path) -> float:
    """Measure the bytes per second of one run in exact mode."""
    done = run(["-m", "analyzers", "dtype", str(checkpoint), "--exact", "--json"])
    return float(done.json["timing"]["bytes_per_second"])


def write(layout: str, source: Path, folder: Path) -> None:
    """Write a pickled copy of ``source``, or (hole-...) a file of 5 GB whose weights are a hole in it."""
    import torch
    from safetensors.torch import load_file

    folder.mkdir()
    target = folder / "pytorch_model.bin"
    if not layout.startswith("hole"):
        with target.open("wb") as file:
            torch.save(load_file(source / "model.safetensors"), file, _use_new_zipfile_serialization=layout == "zip")
            file.flush()
            os.fsync(file.fileno())  # later writing back would disturb measurements
        return
    state = {f"model.layers.{i}.mlp.up_proj.weight": torch.empty(ELEMENTS // 4000, 4000, dtype=torch.bfloat16) for i in range(TENSORS)}
    if layout == "hole-zip":
        with torch.serialization.skip_data():
            torch.save(state, target)
        return
    from tests.attacks.pickles import MAGIC, mapping, named, number, pickled, stored, text

    rows, kind = ELEMENTS // 4000, named("torch", "BFloat16Storage")
    shape, strides = b"(" + number(rows) + number(4000) + b"t", b"(" + number(4000) + number(1) + b"t"
    keys = [str(i) for i in range(TENSORS)]
    tensors = {
        name: stored(number(rows * 4000), shape=shape, strides=strides, key=text(key), kind=kind, view=b"N")
        for name, key in zip(state, keys, strict=True)
    }
    with target.open("wb") as file:
        file.write(MAGIC + pickled(mapping(**tensors)) + pickled(b"](" + b"".join(map(text, keys)) + b"e"))
        for _ in keys:
            file.write((rows * 4000).to_bytes(8, "little"))
            file.seek(2 * rows * 4000, 1)
        file.truncate()


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
