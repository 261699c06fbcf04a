"""Which implementation of the loops over bits to use."""

from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics import plain
from analyzers.numerics.pair_tables import PairCounts, PairTables
from analyzers.numerics.plain import Grid, Kind

# Up to here numpy is done before compiled loops would be loaded.
PLAIN_BYTES = 4 << 20


class Loops(Protocol):
    """What `kernels` (compiled) and `plain` (numpy) both are. `compiled` documents each function."""

    def count_bf16(self, codes: NDArray[np.uint16], table: NDArray[np.uint32], beside: NDArray[np.int64]) -> None: ...
    def count_fp16(self, codes: NDArray[np.uint16], table: NDArray[np.uint32], beside: NDArray[np.int64]) -> None: ...
    def count32(
        self, codes: NDArray[np.uint32], counts: NDArray[np.uint32], fine: NDArray[np.uint32], beside: NDArray[np.int64]
    ) -> tuple[int, int, int, float, bool]: ...
    def take_counts(
        self, table: NDArray[np.uint32], beside: NDArray[np.int64], kind: Kind, index: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> int: ...
    def squares(self, values: NDArray[np.floating[Any]], scale: float) -> float: ...
    def runs_of_few_significands(
        self, codes: NDArray[Any], row: int, first: int, mantissa: int, exponent: int, stride: int, out: NDArray[np.int64]
    ) -> None: ...
    def exact_rows32(self, codes: NDArray[np.uint32], row: int, need: int, narrow: bool) -> tuple[int, int]: ...
    def exact_rows16(self, codes: NDArray[np.uint16], row: int, need: int) -> int: ...
    def decode_fp8(
        self, codes: NDArray[np.uint8], start: int, grid: Grid, scales: NDArray[np.float32], base: int,
        table: NDArray[np.float32], out: NDArray[np.float32],
    ) -> None: ...  # fmt: skip
    def decode_fp4(
        self, codes: NDArray[np.uint8], start: int, grid: Grid, scales: NDArray[np.float32], base: int,
        table: NDArray[np.float32], out: NDArray[np.float32],
    ) -> None: ...  # fmt: skip
    def count_pairs(
        self, base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str], eta: float, tables: PairTables | None,
        changed: NDArray[np.uint64] | None = None,
    ) -> PairCounts: ...  # fmt: skip
    def mark_places(
        self, mask: NDArray[np.uint64], first: int, column: int, length: int, columns: NDArray[np.uint64] | None, rows: NDArray[np.bool_]
    ) -> None: ...
    def intersections(self, masks: NDArray[np.uint64]) -> NDArray[np.int64]: ...


def loops_for(nbytes: int) -> Loops:
    """The loops to count ``nbytes`` of weights with: compiled ones, loaded and ready, unless numpy is done sooner."""
    if nbytes <= PLAIN_BYTES:
        return plain
    return _compiled()


@cache
def _compiled() -> Loops:
    from analyzers.numerics import kernels

    kernels.start()
    return kernels


def load() -> None:
    """Have the compiled loops ready for a checkpoint that may be large, from a thread, say, while its headers are read."""
    loops_for(PLAIN_BYTES + 1)


def warm() -> None:
    """Load all compiled loops, compiling them if that was never done: so that the first visitor need not wait."""
    from analyzers.numerics import compiled_pairs, gradients, grams, kernels, layers

    for module in (kernels, compiled_pairs, gradients, grams, layers):
        module.warm()
