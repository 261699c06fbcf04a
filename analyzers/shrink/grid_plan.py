"""Plans which matrices are stored as codes and scales: reads them once, and chooses the one format that saves most."""

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.base import Progress
from analyzers.checkpoints import Checkpoint, Chunk, Span, Tensor, quoted, stream, tied_copies
from analyzers.errors import UnsupportedWeights
from analyzers.shrink.grid_formats import FAMILIES, GridFormat, MxExperts
from analyzers.shrink.plan import NothingToShrink, Planned, check_supported, grid_spans, names_in_files

# Position in a family of formats of the first that holds what was read of a tensor; its length if none does.
_Places = tuple[int, ...]
_NONE = tuple(len(family) for family in FAMILIES)


def make_grid_plan(checkpoint: Checkpoint) -> Generator[Progress, None, list[Planned]]:
    """Read the matrices of linear layers, yielding progress; return the plan for each tensor, in the checkpoint's order.

    A checkpoint has one format, that of the fewest bytes, for the matrices that it restores bit for bit; all other tensors stay as they
    are. Raises NothingToShrink if no matrix is on a grid, UnsupportedWeights as `make_plan` and without a config.json to state the format.
    """
    check_supported(checkpoint, "shrink")
    if checkpoint.config is None:
        raise UnsupportedWeights("The checkpoint has no config.json in which to state the format, without which no program could read it.")
    if "quantization_config" in checkpoint.config:
        raise UnsupportedWeights("config.json states a quantization of weights that are not quantized: remove quantization_config first.")
    copies, names = tied_copies(checkpoint), names_in_files(checkpoint)
    matrices = [t for t in checkpoint.tensors if t.name not in copies and any(f.fits(t) for family in FAMILIES for f in family)]
    places = yield from _places(checkpoint, matrices)

    def chosen(family: int, at: int) -> list[Planned]:
        """Return the matrices that a format holds, as planned."""
        grid = FAMILIES[family][at]
        held = [t for t in matrices if places[t.name][family] <= at and grid.fits(t)]
        if isinstance(grid, MxExperts):  # whose module is loaded as a whole
            whole, own = (Counter(_module(t.name) for t in each if grid.fits(t)) for each in (checkpoint.tensors, held))
            held = [t for t in held if whole[_module(t.name)] == own[_module(t.name)]]
        return [planned for t in held if (planned := Planned(t, names[t.name], t.dtype, grid=grid)).nbytes < t.nbytes]

    options = [chosen(i, k) for i, family in enumerate(FAMILIES) for k in range(len(family))]
    best = max(options, key=lambda each: sum(planned.tensor.nbytes - planned.nbytes for planned in each))
    if not best:
        which = max(matrices, key=lambda t: t.elements, default=None)
        changed = "has values off their grids, needs a scale that they cannot hold, or has negative zeros, which integers lack"
        why = f"{quoted(which.name)}, for one, {changed}" if which else "no tensor is the matrix of a linear layer"
        raise NothingToShrink(
            "There is nothing to shrink: codes and scales of int4, int8, fp8 or MXFP4, as transformers loads them, restore no matrix bit "
            f"for bit; {why}."
        )
    by_name = {planned.tensor.name: planned for planned in best}
    return [by_name.get(t.name) or Planned(t, names[t.name], None if t.name in copies else t.dtype) for t in checkpoint.tensors]


def _places(checkpoint: Checkpoint, matrices: list[Tensor]) -> Generator[Progress, None, dict[str, _Places]]:
    """Return for each matrix the first format of each family that holds all of it."""
    found: dict[str, _Places] = {t.name: tuple(0 for _ in FAMILIES) for t in matrices}

    def work(span: Span, chunks: Iterator[Chunk]) -> _Places:
        known = found[span.tensor.name]
        if known == _NONE:  # an earlier span is on no grid: the rest need not be read
            return _NONE
        codes = np.concatenate([chunk.codes.copy() for chunk in chunks])
        return tuple(_first(span.tensor, codes, family, at) for family, at in zip(FAMILIES, known, strict=True))

    spans = [span for t in matrices for span in _spans(t)]
    total = sum(t.nbytes for t in matrices)
    with closing(stream([checkpoint], spans, work)) as steps:  # type: ignore[type-var]
        for step in steps:
            if step.span is not None and step.result is not None:
                name = step.span.tensor.name
                found[name] = tuple(map(max, found[name], step.result))
            yield Progress(done=step.bytes_read, total=total, unit="bytes", note="looking for scales that restore every value")
    return found


def _first(tensor: Tensor, codes: NDArray[Any], family: tuple[GridFormat, ...], at: int) -> int:
    """Return the first format of a family, from ``at`` on, that restores the values."""
    for k in range(at, len(family)):
        if family[k].fits(tensor) and family[k].encode(tensor, codes) is not None:
            return k
    return len(family)


def _spans(tensor: Tensor) -> list[Span]:
    """Return spans of whole units of every format that may hold the tensor."""
    grids = [f for family in FAMILIES for f in family if f.fits(tensor)]
    return grid_spans(tensor, max(grids, key=lambda grid: grid.unit(tensor)))


def _module(name: str) -> str:
    return name.rpartition(".")[0]
