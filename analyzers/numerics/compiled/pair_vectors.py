"""What the loops over pairs are made of: bits of words, which numba has no word for, the order of bf16, and pairs set aside."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import int32, int64, uint32, uint64
from numba.extending import intrinsic

from analyzers.numerics.compiled.compiler import jit
from analyzers.numerics.compiled.pair_passes import squeeze16, squeeze32
from analyzers.numerics.compiled.vector_code import AVX512, LINE, address, array_at, array_of, prefetch
from analyzers.numerics.pair_cells import GROUP

BLOCK = 1024  # elements that a pass goes over: a few arrays of them lie in the nearest cache, and the next ones arrive meanwhile

# Sums of float64 may be taken in any order, and by fused multiplication; all else stays as IEEE 754 has it.
FASTER = {"reassoc", "contract", "nsz"}

MAGNITUDE = np.uint32(0x7FFFFFFF)
INFINITY = np.uint32(0x7F800000)
NAN = np.uint32(0x7FC00000)

_intrinsic = cast(Callable[[Any], Any], intrinsic)


@_intrinsic
def first_bit(context: Any, word: Any) -> Any:
    """The place of the lowest bit of a word that has one."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return uint64(uint64), build


@_intrinsic
def ones(context: Any, word: Any) -> Any:
    """How many bits of a word are set."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return uint64(uint64), build


@jit(inline="always")
def order(code: Any) -> Any:
    """The place among the values of bf16 of an fp32 pattern, rounded to nearest even; zeros at 0, infinities and ``NAN`` at the ends.

    In two's complement, where rounding half an ulp further up down is rounding to nearest, whatever the sign.
    """
    sign = int32(int32(code) >> int32(31))
    place = int32(int32(int32(code & MAGNITUDE) ^ sign) - sign)
    odd = int32(int32(place >> int32(16)) & int32(1))
    return int32(int32(int32(place + int32(0x7FFF)) + odd) >> int32(16))


@jit(inline="always")
def one_nan(code: Any) -> Any:
    """The fp32 pattern ``code``, or `NAN` in place of any NaN."""
    return NAN if (code & MAGNITUDE) > INFINITY else code


@jit()
def widen(codes: Any, out: Any) -> None:
    """Set ``out`` (n,) to the fp32 patterns of bf16 patterns."""
    for i in range(codes.size):
        out[i] = uint32(codes[i]) << uint32(16)


@jit()
def widen_narrow(codes: Any, room: Any) -> None:
    """Set ``room`` to the fp32 patterns of ``codes`` (n,) of bf16; of fp32 there is nothing to do."""
    if codes.itemsize == 2:
        for line in range(0, 2 * codes.size, LINE):
            prefetch(uint64(address(codes) + uint64(2 * BLOCK + line)))  # of the block that is next
        widen(codes, room)


@_intrinsic
def fp32(context: Any, codes: Any, room: Any) -> Any:
    """The fp32 patterns of ``codes`` (n,): what `widen_narrow` put into ``room``, or themselves."""
    narrow = codes.dtype.bitwidth == 16

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not narrow:
            return arguments[0]
        size, data = (array_of(context, builder, *each) for each in zip(signature.args, arguments, strict=True))
        return array_at(context, builder, signature.return_type, data.data, [size.nitems])

    return (room if narrow else codes)(codes, room), build


@jit()
def fill_group(kept: Any, held: int) -> int:
    """Put zeros, which count nowhere, behind the ``held`` pairs in ``kept`` (2, m) up to whole groups; returns how many that makes."""
    size = -(-held // GROUP) * GROUP
    kept[:, held:size] = 0
    return size


@jit()
def keep(a: Any, b: Any, masks: Any, words: Any, differing: int, kept: Any, held: int) -> int:
    """Append the ``differing`` pairs that ``masks`` tell to the ``held`` ones in ``kept`` (2, m); returns how many that makes.

    Where they lie is random: no branch may depend on it. words: room for one more number than there are masks.
    """
    found = 0
    for number in range(a.size // GROUP):
        words[found] = number
        found += masks[number] != uint64(0)
    if AVX512:
        ends = address(kept[0, held:]), address(kept[1, held:])
        if kept.itemsize == 2:
            return int(held + squeeze16(address(a), address(b), address(words), found, *ends))
        return int(held + squeeze32(address(a), address(b), address(words), found, *ends))
    words[found] = 0
    mask, group = masks[words[0]], 0
    for _ in range(differing):
        i = words[group] * GROUP + int64(first_bit(mask))
        kept[0, held], kept[1, held] = a[i], b[i]
        held += 1
        mask &= mask - uint64(1)
        done = int64(mask == uint64(0))
        group += done
        mask = masks[words[group]] if done else mask
    return held
