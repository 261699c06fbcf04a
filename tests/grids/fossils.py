"""Measures which grid is named where a part of the values has moved off it, as by fine-tuning a dequantized model.

``python -m tests.grids.fossils`` prints, by kind of grid, how many are named rightly, hedged rightly, wrongly, or not at all;
``--every N`` takes every N-th case, ``--only WORD`` those with a word in their title, ``--wrong`` lists what is not right.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch

from analyzers.checkpoints import Tensor
from analyzers.grids import GridSearch, TensorGrid, grid_of, together
from tests.dtype_detection.checkpoints import NAMES
from tests.grids import definitions as own
from tests.grids.formats import E4M3, FORMATS, ROW, TENSOR, Format, torchao_integers

Values = torch.Tensor

SHARES = (0.01, 0.05, 0.1, 0.2, 0.4)
STORED = (torch.bfloat16, torch.float16, torch.float32)
SCALES = (torch.float32, torch.float16, torch.bfloat16)


def _integers(bits: int, group: int, symmetric: bool, scales: torch.dtype) -> Callable[[Values, torch.dtype], Values]:
    if bits == 2 and symmetric:  # `own.integers` makes these ternary
        return torchao_integers(bits, group, symmetric)
    return lambda values, dtype: own.integers(values, dtype, bits, group, symmetric=symmetric, scales=scales)


def _affine(bits: int, group: int) -> Callable[[Values, torch.dtype], Values]:
    return lambda values, dtype: own.affine(values, dtype, bits, group)


def _formats() -> Iterator[Format]:
    words = {TENSOR: "tensor", ROW: "row"}
    for number, (bits, group) in enumerate(product((2, 3, 4, 5, 6, 8), (16, 32, 64, 128, ROW, TENSOR))):
        size, scales = words.get(group, str(group)), SCALES[number % 3]
        yield Format(f"int{bits} {size}", "integers", bits, group, _integers(bits, group, True, scales))
        yield Format(f"int{bits}_zp {size}", "integers", bits, group, _integers(bits, group, False, scales), False)
        if bits < 8 and group != TENSOR:
            yield Format(f"int{bits}_offset {size}", "affine", bits, group, _affine(bits, group), False)
    yield Format("e4m3 block 128x128", "fp8", 8, 128, lambda v, d: own.fp8_blocks(v, d, E4M3, 128, 128))
    others = ("nf4", "fp4", "nvfp4", "e4m3 tensor", "e4m3 row", "transformers", "mxfp", "IQ4", "Q3_K", "Q6_K")
    yield from (form for form in FORMATS if any(word in form.name for word in others))


def of_values(x: Values, share: float, rng: np.random.Generator) -> Values:
    """Move a share of the values by Gaussian noise of a tenth of their spread."""
    moved = torch.from_numpy(rng.random(tuple(x.shape)) < share)
    return torch.where(moved, x + torch.from_numpy(rng.standard_normal(tuple(x.shape))).float() * 0.1 * x.std(), x)


def of_rows(x: Values, share: float, rng: np.random.Generator) -> Values:
    """Move whole rows so."""
    return torch.where(torch.from_numpy(rng.random((len(x), 1)) < share), of_values(x, 1.0, rng), x)


def of_step(x: Values, share: float, rng: np.random.Generator) -> Values:
    """Move a share of the values to a neighbour in bf16; zeros to a small value."""
    bits = x.bfloat16().view(torch.int16) + torch.from_numpy(rng.integers(0, 2, tuple(x.shape)) * 2 - 1).short()
    near = torch.where(x == 0, torch.from_numpy(rng.standard_normal(tuple(x.shape))).float() * 1e-6, bits.view(torch.bfloat16).float())
    return torch.where(torch.from_numpy(rng.random(tuple(x.shape)) < share), near.bfloat16().float(), x.bfloat16().float())


MOVES: dict[str, Callable[[Values, float, np.random.Generator], Values]] = {"values": of_values, "rows": of_rows, "step": of_step}


@dataclass(frozen=True)
class Fossil:
    """A matrix of a format, of which a share of the values moved."""

    form: Format
    move: str
    share: float
    dtype: torch.dtype
    number: int

    @property
    def title(self) -> str:
        """Name of the case."""
        return f"{self.form.name}, {self.share:.0%} {self.move}, {str(self.dtype).removeprefix('torch.')}"

    def values(self) -> Values:
        """Return the matrix."""
        distribution = own.DISTRIBUTIONS[self.number % len(own.DISTRIBUTIONS)]
        x = self.form.make(own.weights(distribution, 256, 512, self.number), torch.float32).to(self.dtype).float()
        return MOVES[self.move](x, self.share, np.random.default_rng(self.number)).to(self.dtype).contiguous()


def fossils() -> list[Fossil]:
    """Return all cases."""
    combined = product(_formats(), MOVES, SHARES, STORED)
    return [Fossil(*case, number) for number, case in enumerate(combined)]


def found(values: Values, part: int = 0) -> TensorGrid | None:
    """Return the grid of a matrix, read whole or every other ``part`` elements."""
    codes = values.contiguous().view({2: torch.uint16, 4: torch.uint32}[values.element_size()]).numpy().ravel()
    tensor, grids, read = Tensor("w.weight", NAMES[values.dtype], tuple(values.shape), 0, 0, codes.nbytes, "mlp", None, False), [], 0
    for start in range(0, codes.size, 2 * part or codes.size):
        search = GridSearch(tensor)
        search.add(codes[start : start + (part or codes.size)], start)
        grids.append(search.found)
        read += codes[start : start + (part or codes.size)].size
    return grid_of(together(grids), read, codes.size, tuple(values.shape))


_LARGE = ("128x128", "row", "tensor")
_SIZES = ("16", "32", "64", "128", "256", "128x128", "row", "tensor")


def verdict(form: Format, grid: TensorGrid | None) -> str:
    """Judge a name: right, hedged (said to be the least, and the truth has no fewer bits and no smaller groups), wrong, or none."""
    if grid is None:
        return "none"
    name, group = form.answer.split()
    if (grid.format, grid.group) == (name, group):
        return "right"
    grid = replace(grid, group=grid.group.replace("column", "row"))
    if name == "int2_zp":  # -1 to 2 are the levels of int2 with a negative scale, and 0 to 3 are rare
        name = "int2"
    if group in _LARGE:  # in which the one level of integers with a zero point, or of int2, is too rare to matter
        name, grid = name.removesuffix("_zp"), replace(grid, format=grid.format.removesuffix("_zp").replace("ternary", "int2"))
    if (grid.format, grid.group) == (name, group):
        return "right"
    kinds = [each.removeprefix("mx").rstrip("0123456789").removesuffix("_zp") for each in (name, grid.format)]
    bits = [int(each[3]) if each.startswith("int") else 2 if each == "ternary" else 0 for each in (name, grid.format)]
    same = form.bits >= bits[1] if all(bits) else kinds[0] == kinds[1]
    offset = "offset" in name or "offset" not in grid.format
    smaller = grid.group in _SIZES[: _SIZES.index(group) + 1]
    return "hedged" if grid.least and same and offset and smaller else "wrong"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--wrong", action="store_true")
    options = parser.parse_args()
    sums: dict[str, Counter[str]] = {}
    for case in [case for case in fossils() if options.only in case.title][:: options.every]:
        grid = found(case.values())
        said = verdict(case.form, grid)
        for key in ("all", f"kind {case.form.name.split()[0]}", f"move {case.move} {case.share:.0%}", f"dtype {case.dtype}"):
            sums.setdefault(key, Counter())[said] += 1
        if options.wrong and grid is not None and said != "right":
            print(
                f"{said} {case.title}: {grid.format} {grid.group}, {grid.exceptions} of {grid.groups} off, least {grid.least}", flush=True
            )
    print(f"{'':28}" + "".join(f"{word:>8}" for word in WORDS))
    for key, counts in sums.items():
        print(f"{key:28}" + "".join(f"{counts[word]:8}" for word in WORDS))
    return 0


WORDS = ("right", "hedged", "wrong", "none")

if __name__ == "__main__":
    sys.exit(main())
