"""How a quantized tensor is stored, and how its values are computed from codes, scales, zero points and biases.

    value = (table[code] - zero) x scale + bias, in float32, each operation rounded once, as loading code does

Scales, zero points and biases are shared by blocks of a matrix, and may be quantized themselves.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import lcm
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.tensor import Stored, Tensor
from analyzers.core.errors import InvalidCheckpoint
from analyzers.core.terminal import quoted
from analyzers.numerics.bins import NARROW
from analyzers.numerics.conversions import fp32_of, fp32_table
from analyzers.numerics.decode_kernels import scale_codes, unpack, unpack_down
from analyzers.numerics.formats import FNUZ, e8m0_values

Floats = NDArray[np.float32]
# Arguments: stored tensor, first element, number of elements. Returns the bit patterns.
Read = Callable[[Tensor, int, int], NDArray[Any]]

# A value, or what it is computed from
Field = Literal["value", "scale", "zero", "bias"]

# Parts of up to so many bytes are read whole, once: a request takes longer than their bytes.
SMALL_BYTES = 4 << 10
_NONE = np.empty(0, np.int64)
# Values computed at a time, which still fit a core's cache.
PIECE = 1 << 17


class Packing(NamedTuple):
    """Where the codes of a row are: ``bits`` each, consecutive from the lowest bit on.

    order: position of each of so many consecutive codes among them, empty if they are in order. down: a column is packed, not a row, into
    words of 32 bits.
    """

    bits: int
    order: tuple[int, ...] = ()
    down: bool = False


class Run(NamedTuple):
    """What was read to compute elements ``first`` to ``stop`` - 1.

    packed: bytes or words from number ``base`` on, none if every code is 0; groups, places: see `decode_kernels.scale_codes`; parts: (3, n)
    scales, zeros and biases from number ``low`` on.
    """

    first: int
    stop: int
    packed: NDArray[Any]
    base: int
    table: Floats
    groups: NDArray[np.int64] = _NONE
    places: NDArray[np.int64] = _NONE
    parts: Floats = np.empty((3, 0), np.float32)
    low: int = 0

    def of(self, field: Field) -> "Run":
        """Return a run whose values are scales, zeros or biases."""
        if field == "value":
            return self
        part = self.parts[("scale", "zero", "bias").index(field)]
        parts = np.stack([part, np.zeros_like(part), np.zeros_like(part)])
        return self._replace(packed=self.packed[:0], table=np.ones(1, np.float32), parts=parts)


@dataclass(frozen=True, slots=True, eq=False)
class Quantized(Stored):
    """A quantized tensor and how its values are computed.

    table: the value of each code, a part if it is stored too; block: rows and columns that share a scale; scale, zero, bias: plain or
    quantized, one for each block, or none; index: the row of scales of each row if columns are packed, else the column of scales of each
    column; acted: whether that is known to be in another order than the rows; factor: multiplies every value; divides: whether values are
    divided by the one scale.
    """

    packing: Packing
    table: Floats | Tensor
    block: tuple[int, int] = (1, 1)
    scale: "Source | None" = None
    zero: "Source | None" = None
    bias: "Source | float" = -0.0  # which changes no value
    index: Tensor | None = None
    acted: bool = False
    factor: float = 1.0
    divides: bool = False

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.packing.bits

    @property
    def group(self) -> int:
        """Number of values that share a scale."""
        return self.block[0] * self.block[1]

    @property
    def label(self) -> str:
        """What it is, in words: "MXFP4 in groups of 32"."""
        _, rows, columns = self.shape
        name = self.layout if self.layout == self.dtype else f"{self.layout} {self.dtype}"
        if self.scale is None:
            return name
        if self.block == (rows, columns):
            return f"{name} with one scale"
        if self.block in ((1, columns), (rows, 1)):
            return f"{name} per {'row' if self.block[0] == 1 else 'column'}"
        return f"{name} in groups of {self.group:,}" if 1 in self.block else f"{name} in blocks of {self.block[0]:,} x {self.block[1]:,}"

    @property
    def levels(self) -> NDArray[np.float64]:
        """The finite values of codes, ascending: value = (level - zero) x scale + bias."""
        assert not isinstance(self.table, Tensor)
        return np.unique(self.table[np.isfinite(self.table)]).astype(np.float64)

    @property
    def reads(self) -> int:
        """Number of reads that consecutive elements need."""
        return 1 + sum(1 for _ in self.parts)

    @property
    def sources(self) -> "list[Source]":
        """Scale, zero point and bias, as far as there are any."""
        return [each for each in (self.scale, self.zero, self.bias) if each is not None and not isinstance(each, float)]

    @property
    def parts(self) -> Iterator[Tensor]:
        """The stored tensors besides the codes, from which values are computed."""
        for source in self.sources:
            yield source.codes if isinstance(source, Quantized) else source
            yield from source.parts if isinstance(source, Quantized) else ()
        if self.index is not None:
            yield self.index
        if isinstance(self.table, Tensor):
            yield self.table

    @property
    def grid(self) -> tuple[int, int, int, int, int, int]:
        """Rows and columns of a matrix, of a block, and of its scales."""
        _, rows, columns = self.shape
        block_rows, block_columns = self.block
        return rows, columns, block_rows, block_columns, -(-rows // block_rows), -(-columns // block_columns)

    @property
    def consistent(self) -> bool:
        """Return whether codes, scales and the other parts have the numbers of elements that the shape needs."""
        matrices, rows, columns = self.shape
        block_rows, block_columns = self.block
        scales = matrices * -(-rows // block_rows) * -(-columns // block_columns)
        for source in self.sources:
            if source.elements != scales or (isinstance(source, Quantized) and not source.consistent):
                return False
        indexed = self.index is None or (matrices == 1 and self.index.elements == (rows if self.packing.down else columns))
        if self.packing.down:
            fits = matrices == 1 and self.codes.nbytes == 4 * -(-rows * self.bits // 32) * columns
        else:
            fits = self.codes.nbytes == -(-self.elements * self.bits // 8) and columns % max(1, len(self.packing.order)) == 0
        return fits and indexed

    def nbytes(self, first: int, stop: int) -> int:
        """Bytes to read for elements ``first`` to ``stop`` - 1; of scales all, if rows are in another order than their groups."""
        if first >= stop:
            return 0
        begin, end = self._units(first, stop)
        nbytes = (end - begin) * (4 if self.packing.down else 1)
        if self.scale is not None:
            low, high = (0, self.scale.elements) if self.acted else self._span(first, stop)
            nbytes += sum(_nbytes(each, low, high) for each in self.sources)
        return nbytes + (0 if self.index is None else _nbytes(self.index, *self._indexed(first, stop)))

    def load(self, read: Read, first: int, stop: int) -> Run:
        """Read what elements ``first`` to ``stop`` - 1 are computed from. Raises InvalidCheckpoint for an index of no scale."""
        begin, end = self._units(first, stop)
        packed = read(self._packed(), begin, end - begin)
        table = numbers(self.table, read, 0, self.table.elements) if isinstance(self.table, Tensor) else self.table
        if self.scale is None:
            return Run(first, stop, packed, begin, table)
        groups, places, (low, high) = _NONE, _NONE, self._span(first, stop)
        if self.index is not None:
            row, last = self._indexed(first, stop)
            index = read(self.index, row, last - row).view(f"<i{self.index.itemsize}").astype(np.int64)
            down, across = self.grid[4:]
            if index.min() < 0 or index.max() >= (down if self.packing.down else across):
                raise InvalidCheckpoint(f"{quoted(self.index.name)} refers to groups that have no scales.", self.index.name)
            if self.packing.down:
                groups, low, high = index, int(index.min()) * across, (int(index.max()) + 1) * across
            else:
                places = index
        parts = np.empty((3, high - low), np.float32)
        for row, source in enumerate((self.scale, self.zero or 0.0, self.bias)):
            parts[row] = source if isinstance(source, float) else numbers(source, read, low, high)
        return Run(first, stop, packed, begin, table, groups, places, parts, low)

    def with_parts(self, run: Run) -> Run:
        """Return a run with its scales, zeros and biases, which `load` may leave out."""
        return run

    def compute(self, run: Run, first: int, stop: int, out: Floats) -> None:
        """Set ``out`` (stop - first,) to the values of a run."""
        codes = self.unpacked(run, first, stop)
        if not run.parts.size:
            np.take(run.table, codes, out=out, mode="clip")
        elif self.divides:
            with np.errstate(all="ignore"):
                np.divide(run.table[codes], run.parts[0, 0], out=out)
        else:
            groups = run.groups[first // self.shape[2] - run.first // self.shape[2] :] if run.groups.size else run.groups
            scale_codes(codes, first, self.grid, groups, run.places, run.table, run.parts, run.low, out)
            if self.factor != 1:
                out *= np.float32(self.factor)

    @property
    def has_columns(self) -> bool:
        """Return whether some columns can be computed alone."""
        return self.packing.down or (self.index is None and self.shape[2] * self.bits % 8 == 0)

    def compute_columns(self, run: Run, row: int, column: int, out: Floats) -> None:
        """Set ``out`` (rows, columns) to the values of some columns from number ``column`` on of rows of a run, from number ``row`` on.

        They are those of a narrower tensor, whose first column is one at which a byte, a word and a block begin.
        """
        columns, (bits, order, down), width = self.shape[2], self.packing, min(self.block[1], self.shape[2])
        step = lcm(width if width < columns else 1, 1 if down else max(8, len(order)))
        begin, end = column // step * step, min(-(-(column + out.shape[1]) // step) * step, columns)
        narrow, across = replace(self, shape=(*self.shape[:2], end - begin)), -(-columns // width)
        units = [at if down else at * bits // 8 for at in (begin, end, columns, end - begin)]
        parts = run.parts.reshape(3, -1, across)[:, :, begin // width : -(-end // width)]
        part = run._replace(
            first=run.first // columns * (end - begin), stop=run.stop // columns * (end - begin),
            packed=np.ascontiguousarray(run.packed.reshape(-1, units[2])[:, units[0] : units[1]]).reshape(-1),
            base=run.base // units[2] * units[3],
            parts=np.ascontiguousarray(parts).reshape(3, -1), low=run.low // across * parts.shape[2],
        )  # fmt: skip
        rows = max(1, PIECE // (end - begin))
        for start in range(0, len(out), rows):
            piece = out[start : start + rows]
            first, stop = ((row + start + at) * (end - begin) for at in (0, len(piece)))
            values = np.empty((len(piece), end - begin), np.float32)
            narrow.compute(part, first, stop, values.reshape(-1))
            piece[:] = values[:, column - begin : column - begin + out.shape[1]]

    def unpacked(self, run: Run, first: int, stop: int) -> NDArray[np.uint8]:
        """Return the codes of elements ``first`` to ``stop`` - 1 of a run, a byte each."""
        if not run.packed.size:
            return np.zeros(stop - first, np.uint8)
        bits, order, down = self.packing
        if bits == 8 and not down and not order:
            return run.packed[first - run.base : stop - run.base]
        size = max(1, len(order))
        begin, end = first // size * size, -(-stop // size) * size
        codes = np.empty(end - begin, np.uint8)
        if down:
            unpack_down(run.packed, run.base, self.shape[2], first, bits, codes)
        else:
            unpack(run.packed, begin - run.base * 8 // bits, bits, np.array(order, np.int64), codes)
        return codes[first - begin : stop - begin]

    def _packed(self) -> Tensor:
        """Return the codes as bytes or words."""
        dtype, size = ("U32", 4) if self.packing.down else ("U8", 1)
        return (
            self.codes if self.codes.itemsize == 1 else replace(self.codes, dtype=dtype, shape=(self.codes.nbytes // size,), strides=None)
        )

    def _units(self, first: int, stop: int) -> tuple[int, int]:
        """Return the bytes, or words, that hold elements ``first`` to ``stop`` - 1: the first and the last + 1."""
        bits, order, down = self.packing
        if not down:
            size = max(len(order), 8)  # so many codes fill whole bytes
            return first // size * size * bits // 8, min(-(-stop // size) * size * bits // 8, self.codes.nbytes)
        columns = self.shape[2]
        row, last = first // columns, (stop - 1) // columns
        begin, end = row * bits // 32 * columns, (last * bits + bits - 1) // 32 * columns
        return (begin + first % columns, end + (stop - 1) % columns + 1) if row == last else (begin, end + columns)

    def _span(self, first: int, stop: int) -> tuple[int, int]:
        """Return the first and the last + 1 number of the scales of elements ``first`` to ``stop`` - 1."""
        rows, columns, block_rows, block_columns, down, across = self.grid

        def scale_of(element: int) -> int:
            row, column = divmod(element, columns)
            matrix, row = divmod(row, rows)
            return (matrix * down + row // block_rows) * across + column // block_columns

        if first // columns == (stop - 1) // columns and self.index is None:
            return scale_of(first), scale_of(stop - 1) + 1
        return scale_of(first - first % columns), scale_of((stop - 1) // columns * columns) + across

    def _indexed(self, first: int, stop: int) -> tuple[int, int]:
        """Return the part of the index that elements ``first`` to ``stop`` - 1 need."""
        columns = self.shape[2]
        return (first // columns, -(-stop // columns)) if self.packing.down else (0, columns)


Source = Tensor | Quantized


def numbers(source: Source, read: Read, first: int, stop: int) -> Floats:
    """Read elements ``first`` to ``stop`` - 1 of scales, zero points or biases, in float32."""
    if isinstance(source, Quantized):
        out = np.empty(stop - first, np.float32)
        source.compute(source.load(read, first, stop), first, stop, out)
        return out
    codes = read(source, first, stop - first)
    if source.dtype in ("F32", "F16", "BF16"):
        return fp32_of(codes, source.dtype).view(np.float32)
    if source.dtype.startswith("F8_"):
        return fp8_table(source.dtype)[codes]
    signed = "i" if source.dtype.startswith("I") else "u"
    return codes.view(f"<{signed}{source.itemsize}").astype(np.float32)


@cache
def fp8_table(dtype: str) -> Floats:
    """Return the value of each byte of an fp8 dtype; of "F8_E8M0", powers of two."""
    if dtype in NARROW or dtype in FNUZ:
        return fp32_table(dtype).view(np.float32)
    return e8m0_values().astype(np.float32)


def _nbytes(source: Source, first: int, stop: int) -> int:
    if isinstance(source, Quantized):
        return source.nbytes(first, stop)
    whole = source.nbytes <= SMALL_BYTES or source.strides is not None
    return source.nbytes if whole else (stop - first) * source.itemsize
