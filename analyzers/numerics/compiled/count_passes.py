"""Passes over patterns of one checkpoint as loops of explicit vectors (`vector_code`), for machines that have AVX-512; no other runs them.

An increment of a table takes a store for each element, and a core does one in a cycle. But most weights of a tensor lie within a few
binades, and of most nothing is asked but the binade (`alike`). Exponents of these become bytes of which one bit is set, and bits are
added up place by place. Arrays come as addresses, and in whole groups of `ALIKE_GROUP` elements.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import float64, int64, uint64

from analyzers.numerics.alike import ALIKE, Alike
from analyzers.numerics.compiled.vector_code import (
    AVX512,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    VECTOR_BYTES,
    Code,
    intrinsic,
    types,
    word,
    zeros,
)

BLOCK = VECTOR_BYTES  # elements whose exponents fill a vector of bytes
BLOCKS = 8  # that are added up together
ALIKE_GROUP = BLOCKS * BLOCK
STRETCH = 8 * ALIKE_GROUP  # elements between two looks at where most exponents are
WINDOW16, WINDOW32 = 8, 16  # exponents that are told apart: most weights of a tensor lie within so many

# Bytes beyond what is counted that are asked for meanwhile: weights come from memory, and the machine itself does not look beyond a page.
_AHEAD = 4096

_LANES16, _LANES32 = VECTOR_BYTES // 2, VECTOR_BYTES // 4


def _alike16(kind: Alike) -> Any:
    """The pass over fp16 or bf16."""
    shift = kind.mantissa + 1  # of an exponent, once the sign is shifted out
    # Shifted by its place in the window, a significand has to fit into a signed half word: of fp16, by its place in half of it.
    halves = 1 if kind.mantissa + WINDOW16 < 16 else 2
    reach = WINDOW16 // halves

    @intrinsic
    def alike(context: Any, codes: Any, groups: Any, first: Any, others: Any, counts: Any, sums: Any) -> Any:
        """(how many others, largest and smallest place of an `alike` pattern in the window; -1 and 65,535 where there is none.)

        Counts patterns that are `alike`, of the exponents from ``first`` on, `WINDOW16` of them: adds how many there are of each to
        ``counts``, the address of int64 for these exponents, and the squares of their significands, in units of that of the lowest
        exponent of each half of the window, to ``sums``, laid out in the same way. Puts all other patterns to ``others``, the
        address of room for as many and a vector more. A place is twice the magnitude's pattern, counted from that of the lowest.
        """

        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            if not AVX512:
                return context.get_constant_null(signature.return_type)
            codes, groups, first, others, counts, sums = arguments
            code = Code(builder)
            none16, none64 = zeros(INT16, _LANES16), zeros(INT64, VECTOR_BYTES // 8)
            all16 = code.like(none16, 0xFFFF)
            lowest = code.repeated(builder.shl(builder.trunc(first, INT16), ir.Constant(INT16, shift)), _LANES16)
            binades = _Binades(code)
            squares = [code.kept(none64) for _ in range(halves)]
            most, least, end = code.kept(all16), code.kept(all16), code.kept(others)
            with code.each(groups) as loop:
                blocks = []
                for block in range(BLOCKS):
                    places, products = [], []
                    for part in (2 * block, 2 * block + 1):
                        offset = builder.add(builder.mul(loop.index, word(2 * ALIKE_GROUP)), word(part * VECTOR_BYTES))
                        code.prefetch(codes, builder.add(offset, word(_AHEAD)))
                        x = code.load(codes, offset, INT16)
                        inside = builder.sub(builder.add(x, x), lowest)  # the place in the window, then the mantissa, then nothing
                        outside = builder.icmp_unsigned(">=", inside, code.like(x, WINDOW16 << shift))
                        telling = builder.icmp_unsigned("==", builder.and_(x, code.like(x, kind.low)), none16)
                        other = builder.or_(outside, telling)
                        end.value = code.squeeze_within(x, other, end.value)
                        inside = builder.select(other, all16, inside)
                        most.value = code.larger_signed(most.value, inside)
                        least.value = code.smaller(least.value, inside)
                        place = builder.lshr(inside, code.like(x, shift))
                        significand = builder.and_(x, code.like(x, (1 << kind.mantissa) - 1))
                        significand = builder.or_(significand, code.like(x, 1 << kind.mantissa))
                        steps = [place]  # by 16 and more shifts to nothing
                        if halves == 2:
                            upper = builder.shl(builder.and_(place, code.like(x, reach)), code.like(x, 2))
                            steps = [builder.or_(place, upper), builder.sub(place, code.like(x, reach))]
                        products.append([code.squared_pairs(code.shifted16(significand, each)) for each in steps])
                        places.append(place if part % 2 == 0 else builder.shl(place, code.like(x, 8)))
                    for square, *both in zip(squares, *products, strict=True):
                        together = code.bits_as(builder.add(*both), INT64)
                        low = builder.and_(together, code.like(none64, 0xFFFFFFFF))
                        square.value = builder.add(square.value, builder.add(builder.lshr(together, code.like(none64, 32)), low))
                    blocks.append(code.bits_as(builder.or_(builder.and_(places[0], code.like(none16, 0xFF)), places[1]), INT8))
                binades.add(blocks)
            binades.put(counts)
            for number, square in enumerate(squares):
                code.increase(sums, word(8 * number * reach), code.sum(square.value))
            largest = builder.sext(code.reduced("smax", most.value), INT64)
            smallest = builder.zext(code.reduced("umin", least.value), INT64)
            held = builder.lshr(builder.sub(end.value, others), word(1))
            return context.make_tuple(builder, signature.return_type, [held, largest, smallest])

        return types.UniTuple(int64, 3)(uint64, int64, int64, uint64, uint64, uint64), write

    return alike


alike_bf16, alike_fp16 = _alike16(ALIKE["BF16"]), _alike16(ALIKE["F16"])


@intrinsic
def native32(context: Any, codes: Any, groups: Any, first: Any, left: Any, counts: Any) -> Any:
    """(how many blocks are left, largest |pattern|, the smallest minus 1 with zeros on top, sum of squares in float64) of fp32 patterns.

    Counts blocks of which no pattern has its low 13 bits all zero, and all have one of the `WINDOW32` exponents from ``first`` on: adds
    how many there are of each to ``counts``, the address of int64 for these exponents. Puts the numbers of all other blocks to
    ``left``, the address of room for one more int64. The sum means nothing where a value is not finite.
    """

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not AVX512:
            return context.get_constant_null(signature.return_type)
        codes, groups, first, left, counts = arguments
        code = Code(builder)
        none = zeros(INT32, _LANES32)
        lowest = code.repeated(builder.trunc(first, INT8), VECTOR_BYTES)
        binades = [_Binades(code, first=8 * number) for number in range(WINDOW32 // 8)]
        squares = [code.kept(zeros(FLOAT64, VECTOR_BYTES // 8)) for _ in range(4)]
        most, least, end = code.kept(none), code.kept(code.like(none, 0xFFFFFFFF)), code.kept(left)
        with code.each(groups) as loop:
            blocks = []
            for block in range(BLOCKS):
                low_bits, exponents = code.like(none, 0x1FFF), none
                for part, shift in enumerate((23, 15, 7, -1)):
                    offset = builder.add(builder.mul(loop.index, word(4 * ALIKE_GROUP)), word((4 * block + part) * VECTOR_BYTES))
                    code.prefetch(codes, builder.add(offset, word(_AHEAD)))
                    x = code.load(codes, offset, INT32)
                    magnitude = builder.and_(x, code.like(x, 0x7FFFFFFF))
                    most.value = code.larger(most.value, magnitude)
                    least.value = code.smaller(least.value, builder.sub(magnitude, code.like(x, 1)))
                    low_bits = code.smaller(low_bits, builder.and_(x, code.like(x, 0x1FFF)))
                    there = builder.lshr(x, code.like(x, shift)) if shift > 0 else builder.shl(x, code.like(x, -shift))
                    exponents = builder.or_(exponents, builder.and_(there, code.like(x, 0xFF << 8 * part)))
                    for number, half in enumerate(code.parts(code.bits_as(x, FLOAT32), 2)):
                        value, square = code.float64(half), squares[(2 * part + number) % 4]
                        square.value = code.multiply_add(value, value, square.value)
                places = builder.sub(code.bits_as(exponents, INT8), lowest)
                outside = code.mask(builder.icmp_unsigned(">=", places, code.like(places, WINDOW32)))
                other = builder.or_(outside, code.mask(builder.icmp_unsigned("==", low_bits, none)))
                other = builder.icmp_unsigned("!=", other, word(0))
                code.store(builder.add(builder.mul(loop.index, word(BLOCKS)), word(block)), end.value, word(0))
                end.value = builder.add(end.value, builder.shl(builder.zext(other, INT64), word(3)))
                nowhere = code.repeated(builder.sext(other, INT64), VECTOR_BYTES // 8)
                blocks.append(builder.or_(places, code.bits_as(nowhere, INT8)))
            for each in binades:
                each.add(blocks)
        for number, each in enumerate(binades):
            each.put(builder.add(counts, word(64 * number)))
        held = builder.lshr(builder.sub(end.value, left), word(3))
        ends = [code.largest(most.value), code.smallest(least.value)]
        return context.make_tuple(builder, signature.return_type, [held, *ends, code.total([each.value for each in squares])])

    return types.Tuple((int64, int64, int64, float64))(uint64, int64, int64, uint64, uint64), write


class _Binades:
    """How often bytes were each of 8 numbers, from ``first`` on, which is 0 or 8; others are above 15.

    Bytes become bits, and bits are added up place by place: `BLOCKS` vectors by full adders to a vector of ones, of twos, of fours, which
    are kept, and of eights, whose bits are counted.
    """

    def __init__(self, code: Code, first: int = 0) -> None:
        self._code = code
        bits = [0] * first + [1 << place for place in range(8)] + [0] * (8 - first)
        self._bits = ir.Constant(ir.VectorType(INT8, VECTOR_BYTES), bits * (VECTOR_BYTES // 16))
        self._sums = [code.kept(zeros(INT8, VECTOR_BYTES)) for _ in range(3)]
        self._eights = [code.kept(word(0)) for _ in range(8)]

    def add(self, blocks: Sequence[Any]) -> None:
        """Count `BLOCKS` vectors of bytes."""
        builder, carried = self._code.builder, [self._code.looked_up(self._bits, each) for each in blocks]
        for held in self._sums:
            pairs, carried = list(zip(carried[::2], carried[1::2], strict=True)), []
            for one, other in pairs:
                differ, both = builder.xor(one, other), builder.and_(one, other)
                carried.append(builder.or_(both, builder.and_(held.value, differ)))
                held.value = builder.xor(held.value, differ)
        for place, eights in enumerate(self._eights):
            eights.value = builder.add(eights.value, self._ones(carried[0], place))

    def put(self, counts: Any) -> None:
        """Add what was counted to the 8 int64 at the address ``counts``."""
        builder = self._code.builder
        for place, eights in enumerate(self._eights):
            whole = builder.shl(eights.value, word(3))
            for power, held in enumerate(self._sums):
                whole = builder.add(whole, builder.shl(self._ones(held.value, place), word(power)))
            self._code.increase(counts, word(8 * place), whole)

    def _ones(self, vector: Any, place: int) -> Any:
        """How many bytes have this bit set."""
        builder = self._code.builder
        here = builder.icmp_unsigned("!=", builder.and_(vector, self._code.like(vector, 1 << place)), zeros(INT8, VECTOR_BYTES))
        return builder.ctpop(self._code.mask(here))
