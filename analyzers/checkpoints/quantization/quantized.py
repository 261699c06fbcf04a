"""How a quantized tensor is stored, and how its values are computed from codes, scales, zero points and biases.

    value = (table[code] - zero) x scale + bias, in float32, each operation rounded once, as loading code does

Scales, zero points and biases are shared by blocks of a matrix, and may be quantized themselves.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.tensor import Tensor
from analyzers.core.errors import InvalidCheckpoint
from analyzers.core.terminal import quoted
from analyzers.numerics.bins import NARROW
from analyzers.numerics.conversions import fp32_of, fp32_table
from analyzers.numerics.decode_kernels import scale_codes, unpack, unpack_down
from analyzers.numerics.formats import FNUZ, e8m0_values

if TYPE_CHECKING:
    from analyzers.checkpoints.quantization.decoded_file import DecodedFile

Floats = NDArray[np.float32]
# Arguments: stored tensor, first element, number of elements. Returns the bit patterns.
Read = Callable[[Tensor, int, int], NDArray[Any]]

# A value, or what it is computed from: (level - zero) x scale + bias
Field = Literal["value", "level", "scale", "zero", "bias"]

# Parts of up to so many bytes are read whole, once: a request takes longer than their bytes.
SMALL_BYTES = 4 << 10
_NONE = np.empty(0, np.int64)


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

    packed: bytes or words from number ``base`` on; groups: see `decode_kernels.scale_codes`; parts: (3, n) scales, zeros and biases from
    number ``low`` on.
    """

    first: int
    stop: int
    packed: NDArray[Any]
    base: int
    groups: NDArray[np.int64]
    parts: Floats
    low: int


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """A quantized tensor as it is stored.

    layout: its name in `layouts.LAYOUTS`; dtype: of the codes, for people, such as "MXFP4"; shape: (matrices, rows, columns) in the order
    of the codes; table: the value of each code; block: rows and columns that share a scale; scale, zero, bias: plain or quantized, one for
    each block, or none; index: of each row, its row of scales; divides: whether values are divided by the one scale. file: of its
    values, None for a part; offset: of its first value there, in bytes.
    """

    layout: str
    dtype: str
    codes: Tensor
    packing: Packing
    table: Floats
    shape: tuple[int, int, int]
    block: tuple[int, int] = (1, 1)
    scale: "Source | None" = None
    zero: "Source | None" = None
    bias: "Source | float" = -0.0  # which changes no value
    index: Tensor | None = None
    divides: bool = False
    file: "DecodedFile | None" = None
    offset: int = 0

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
    def elements(self) -> int:
        """Number of values."""
        matrices, rows, columns = self.shape
        return matrices * rows * columns

    @property
    def reads(self) -> int:
        """Number of reads that elements in a row need."""
        return 1 + sum(1 for _ in self.parts)

    @property
    def sources(self) -> "Iterator[Source]":
        """Scale, zero point and bias, as far as there are any."""
        yield from (each for each in (self.scale, self.zero, self.bias) if each is not None and not isinstance(each, float))

    @property
    def parts(self) -> Iterator[Tensor]:
        """The stored tensors besides the codes, from which values are computed."""
        for source in self.sources:
            yield source.codes if isinstance(source, Quantized) else source
            yield from source.parts if isinstance(source, Quantized) else ()
        if self.index is not None:
            yield self.index

    @property
    def grid(self) -> tuple[int, int, int, int, int, int]:
        """Rows and columns of a matrix, of a block, and of its scales."""
        _, rows, columns = self.shape
        block_rows, block_columns = self.block
        across, down = -(-columns // block_columns), -(-rows // block_rows)
        if self.index is not None and self.scale is not None:
            down = _elements(self.scale) // across
        return rows, columns, block_rows, block_columns, down, across

    @property
    def consistent(self) -> bool:
        """Return whether codes, scales and the other parts have the numbers of elements that the shape needs."""
        matrices, rows, columns = self.shape
        _, _, _, _, down, across = self.grid
        scales = matrices * down * across
        fits = all(_elements(each) == scales and (not isinstance(each, Quantized) or each.consistent) for each in self.sources)
        lengths = rows * self.bits % 32 if self.packing.down else columns % max(1, len(self.packing.order))
        whole = self.codes.nbytes * 8 == -(-self.elements * self.bits // 8) * 8
        return fits and whole and not lengths and (self.index is None or (matrices == 1 and self.index.elements == rows and down > 0))

    def nbytes(self, first: int, stop: int) -> int:
        """Bytes to read for elements ``first`` to ``stop`` - 1."""
        if first >= stop:
            return 0
        begin, end = self._units(first, stop)
        nbytes = (end - begin) * (4 if self.packing.down else 1)
        if self.scale is not None:
            low, high = self._span(first, stop) if self.index is None else (0, _elements(self.scale))
            nbytes += sum(_nbytes(each, low, high) for each in self.sources)
        return nbytes + (0 if self.index is None else _nbytes(self.index, first // self.shape[2], -(-stop // self.shape[2])))

    def load(self, read: Read, first: int, stop: int) -> Run:
        """Read what elements ``first`` to ``stop`` - 1 are computed from."""
        begin, end = self._units(first, stop)
        packed = read(self._packed(), begin, end - begin)
        if self.scale is None:
            return Run(first, stop, packed, begin, _NONE, np.empty((3, 0), np.float32), 0)
        groups, (low, high) = _NONE, (0, 0)
        if self.index is None:
            low, high = self._span(first, stop)
        else:
            groups = self._groups(read, first, stop)
            across = self.grid[5]
            low, high = int(groups.min()) * across, (int(groups.max()) + 1) * across
        parts = np.empty((3, high - low), np.float32)
        for row, source in enumerate((self.scale, self.zero or 0.0, self.bias)):
            parts[row] = source if isinstance(source, float) else numbers(source, read, low, high)
        return Run(first, stop, packed, begin, groups, parts, low)

    def compute(self, field: Field, run: Run, first: int, stop: int, out: Floats) -> None:
        """Set ``out`` (stop - first,) to the values of a run, or to what they are computed from."""
        codes, parts, table = self.unpacked(run, first, stop), run.parts, self.table
        if field == "level":
            np.take(table, codes, out=out, mode="clip")
            return
        if field != "value":  # that number times a value of 1
            chosen = parts[("scale", "zero", "bias").index(field)]
            parts, table = np.stack([chosen, np.zeros_like(chosen), np.zeros_like(chosen)]), np.ones(table.size, np.float32)
        if self.scale is None:
            np.take(table, codes, out=out, mode="clip")
        elif self.divides:
            with np.errstate(all="ignore"):
                np.divide(table[codes], parts[0, 0], out=out)
        else:
            groups = run.groups[first // self.shape[2] - run.first // self.shape[2] :] if run.groups.size else run.groups
            scale_codes(codes, first, self.grid, groups, table, parts, run.low, out)

    def unpacked(self, run: Run, first: int, stop: int) -> NDArray[np.uint8]:
        """Return the codes of elements ``first`` to ``stop`` - 1 of a run, a byte each."""
        bits, order, down = self.packing
        if bits == 8 and not down and not order:
            return run.packed[first - run.base : stop - run.base]
        codes = np.empty(stop - first, np.uint8)
        if down:
            unpack_down(run.packed, run.base, self.shape[2], first, bits, codes)
        else:
            unpack(run.packed, first - run.base * 8 // bits, bits, np.array(order, np.int64), codes)
        return codes

    def _packed(self) -> Tensor:
        """Return the codes as bytes or words."""
        codes = self.codes
        if codes.itemsize == 1:
            return codes
        dtype, size = ("U32", 4) if self.packing.down else ("U8", 1)
        return Tensor(codes.name, dtype, (codes.nbytes // size,), codes.file, codes.offset, codes.nbytes, codes.role, codes.layer, False)

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

        if first // columns == (stop - 1) // columns:
            return scale_of(first), scale_of(stop - 1) + 1
        return scale_of(first - first % columns), scale_of((stop - 1) // columns * columns) + across

    def _groups(self, read: Read, first: int, stop: int) -> NDArray[np.int64]:
        """Read the rows of scales of the rows of elements ``first`` to ``stop`` - 1. Raises InvalidCheckpoint if there are no such rows."""
        assert self.index is not None
        row = first // self.shape[2]
        groups = read(self.index, row, -(-stop // self.shape[2]) - row).view(f"<i{self.index.itemsize}").astype(np.int64)
        if groups.min() < 0 or groups.max() >= self.grid[4]:
            raise InvalidCheckpoint(f"{quoted(self.index.name)} names a group beyond the {self.grid[4]:,} groups of the scales.")
        return groups


Source = Tensor | Quantized


def numbers(source: Source, read: Read, first: int, stop: int) -> Floats:
    """Read elements ``first`` to ``stop`` - 1 of scales, zero points or biases, in float32."""
    if isinstance(source, Quantized):
        out = np.empty(stop - first, np.float32)
        source.compute("value", source.load(read, first, stop), first, stop, out)
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


def _elements(source: Source) -> int:
    return source.elements


def _nbytes(source: Source, first: int, stop: int) -> int:
    if isinstance(source, Quantized):
        return source.nbytes(first, stop)
    return source.nbytes if source.nbytes <= SMALL_BYTES else (stop - first) * source.itemsize
