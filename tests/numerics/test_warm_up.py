"""What is compiled at set-up is all that is ever called: nobody waits for the compiler."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_EVERY_WAY_OF_COUNTING = """
import json, os, sys, tempfile
from itertools import product
import numpy as np
from numba.core.dispatcher import Dispatcher
from safetensors.torch import save_file
from analyzers.checkpoints import Access, Tensor, open_checkpoint
from analyzers.checkpoints.adapters.merged_file import read_values
from analyzers.checkpoints.quantization.decoded_file import read_field
from analyzers.dtype import count
from analyzers.grids import GridSearch
from analyzers.numerics import Accumulator, PairCounter, PairTables, pairs, quantize_kernels
from analyzers.numerics.bins import CODE_TYPE
from analyzers.numerics.quantize_kernels import FORMATS
from analyzers.numerics.warm_up import warm_up
from tests.checkpoints.quantization.test_layouts import LIBRARIES, awq, fixture, gptq

loops = {
    f"{name}.{attribute}": loop
    for name, module in list(sys.modules.items())
    if name.startswith("analyzers.numerics.")
    for attribute, loop in vars(module).items()
    if isinstance(loop, Dispatcher)
}
warm_up()
compiled = {name: set(loop.signatures) for name, loop in loops.items()}
codes = {dtype: np.arange(1 << 16, dtype=np.uint32).astype(kind) for dtype, kind in CODE_TYPE.items()}
random = np.random.default_rng(0)
integers = (random.integers(-7, 8, (64, 512)) / 70).astype(np.float32)
floats = random.choice(np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]), (64, 512)) * random.choice([-1, 1], (64, 512))
floats = (floats * np.repeat(2.0 ** random.integers(-8, -4, (64, 16)), 32, axis=1)).astype(np.float32)


def patterns(values, dtype):
    bits = values.view(np.uint32)
    return bits if dtype == "F32" else (bits >> 16).astype(np.uint16) if dtype == "BF16" else values.astype(np.float16).view(np.uint16)


for dtype in CODE_TYPE:
    Accumulator(dtype).update(codes[dtype])
SIDES = ("F32", "F16", "BF16", "F8_E4M3")
for one, other in product(SIDES, SIDES):
    a, b = (pairs.codes_of(codes[dtype], dtype, {one, other} == {"BF16"}) for dtype in (one, other))
    a.constant()
    for tables, changed in product((None, PairTables.empty(1)), (None, np.empty(1 << 16, dtype=bool))):
        PairCounter(1e-3).count(a, b, pairs.PairSums(), np.zeros((16, 3)), np.zeros(16, bool), tables, changed=changed)
count.exact_rows16(codes["F16"], 128, 10)
count.exact_rows32(codes["F32"], 128, 8)
for form in FORMATS.values():
    quantize_kernels.rounding_error(integers, *form, 1.0, False)
with tempfile.TemporaryDirectory() as folder:
    stored = [fixture(library)[0] for library in LIBRARIES] + [each[0] for each in (awq(), gptq(3, False, False), gptq(4, True, True))]
    for number, tensors in enumerate(stored):
        place = os.path.join(folder, str(number))
        os.mkdir(place)
        save_file(tensors, os.path.join(place, "model.safetensors"))
        with open(os.path.join(place, "config.json"), "w") as file:
            json.dump(fixture(LIBRARIES[number])[1] if number < 3 else {}, file)
        with open_checkpoint(place, Access(local=True)) as checkpoint:
            for tensor in (each for each in checkpoint.tensors if each.stored is not None):
                assert read_values(checkpoint.files, tensor, 3, tensor.elements - 5).size
                assert read_field(tensor, "scale", 3, 100).size
for dtype, values in product(("F32", "BF16", "F16"), (integers, floats)):
    search = GridSearch(Tensor("a.mlp.up_proj.weight", dtype, (64, 512), 0, 0, 0, "mlp", 0, False))
    search.add(patterns(values, dtype).reshape(-1), 0)
    assert search.found
for name, loop in loops.items():
    print(name, *set(loop.signatures) - compiled[name])
"""


def test_every_way_of_counting_is_compiled_at_set_up() -> None:
    run = subprocess.run([sys.executable, "-c", _EVERY_WAY_OF_COUNTING], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-2000:]
    lines = [line.split() for line in run.stdout.splitlines()]
    assert len(lines) >= 20 and all(len(line) == 1 for line in lines), run.stdout
