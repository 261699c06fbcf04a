"""Passes over pairs of patterns as loops of explicit vectors (`vector_code`): what numba would do in several passes, or pair by pair.

Arrays come as addresses, and in whole groups of `GROUP` pairs.
"""

from typing import Any

from llvmlite import ir
from numba import float64, int64, uint64

from analyzers.numerics.compiled.vector_code import (
    AVX512,
    FLOAT32,
    FLOAT64,
    INT16,
    INT32,
    INT64,
    SQUEEZES,
    VECTOR_BYTES,
    Code,
    intrinsic,
    types,
    word,
    zeros,
)
from analyzers.numerics.pair_cells import ABSOLUTE, GROUP, REACH, RELATIVE, RELATIVE_FIRST, RELATIVE_PLANE

# Bytes beyond what is looked at that are asked for meanwhile: the machine itself does not look beyond a page of 4 KiB.
_AHEAD = 2048

_LANES16, _LANES32 = VECTOR_BYTES // 2, VECTOR_BYTES // 4
_MAGNITUDE, _NORMAL, _INFINITY, _NAN = 0x7FFFFFFF, 0x00800000, 0x7F800000, 0x7FC00000


def _survey(bits: int) -> Any:
    """`survey16` or `survey32`."""
    kind, lanes = ir.IntType(bits), 8 * VECTOR_BYTES // bits

    @intrinsic
    def survey(context: Any, base: Any, tuned: Any, groups: Any, masks: Any) -> Any:
        """(largest |pattern| of either side, how many pairs differ, sum of squares of the base's values in float64).

        masks: the address of a word for each group, bit i of which is set where its pair i differs: not where both are zeros. The sum
        means nothing where a value is not finite.
        """

        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            base, tuned, groups, masks = arguments
            code = Code(builder)
            squares = [code.kept(zeros(FLOAT64, VECTOR_BYTES // 8)) for _ in range(4)]
            largest, differing = code.kept(zeros(kind, lanes)), code.kept(word(0))
            with code.each(groups) as loop:
                mask = word(0)
                for part in range(GROUP // lanes):
                    offset = builder.add(builder.mul(loop.index, word(GROUP * bits // 8)), word(part * VECTOR_BYTES))
                    for side in (base, tuned):
                        code.prefetch(side, builder.add(offset, word(_AHEAD)))
                    w, v = code.load(base, offset, kind), code.load(tuned, offset, kind)
                    mask = builder.or_(mask, builder.shl(code.mask(_differ(code, w, v)), word(part * lanes)))
                    magnitudes = [builder.and_(each, code.like(each, (1 << (bits - 1)) - 1)) for each in (w, v)]
                    largest.value = code.larger(largest.value, code.larger(*magnitudes))
                    wide = [w]
                    if bits == 16:
                        both = code.bits_as(w, INT32)
                        wide = [builder.shl(both, code.like(both, 16)), builder.and_(both, code.like(both, 0xFFFF0000))]
                    for number, half in enumerate(half for each in wide for half in code.parts(code.bits_as(each, FLOAT32), 2)):
                        value, square = code.float64(half), squares[(2 * part + number) % 4]
                        square.value = code.multiply_add(value, value, square.value)
                code.store(mask, masks, builder.mul(loop.index, word(8)))
                differing.value = builder.add(differing.value, builder.ctpop(mask))
            found = [code.largest(largest.value), differing.value, code.total([each.value for each in squares])]
            return context.make_tuple(builder, signature.return_type, found)

        return types.Tuple((int64, int64, float64))(uint64, uint64, int64, uint64), write

    return survey


survey16, survey32 = _survey(16), _survey(32)


def _differ(code: Code, w: Any, v: Any) -> Any:
    """Flags of the pairs of patterns that differ and are not both zeros, of whatever signs."""
    builder = code.builder
    some = builder.and_(builder.or_(w, v), code.like(w, (1 << (w.type.element.width - 1)) - 1))
    return builder.and_(builder.icmp_unsigned("!=", w, v), builder.icmp_unsigned("!=", some, code.like(w, 0)))


@intrinsic
def changes32(context: Any, base: Any, tuned: Any, groups: Any, masks: Any) -> Any:
    """Set ``masks``, the address of a word for each group, to where the bf16 values of pairs of fp32 patterns, of any values, differ."""

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base, tuned, groups, masks = arguments
        code = Code(builder)
        with code.each(groups) as loop:
            mask = word(0)
            for part in range(GROUP // _LANES32):
                offset = builder.add(builder.mul(loop.index, word(4 * GROUP)), word(part * VECTOR_BYTES))
                places = []
                for side in (base, tuned):
                    pattern = code.load(side, offset, INT32)
                    magnitude = builder.and_(pattern, code.like(pattern, _MAGNITUDE))
                    nan = builder.icmp_unsigned(">", magnitude, code.like(pattern, _INFINITY))
                    one = code.like(pattern, _NAN)
                    places.append(_order(code, builder.select(nan, one, pattern), builder.select(nan, one, magnitude)))
                mask = builder.or_(mask, builder.shl(code.mask(builder.icmp_unsigned("!=", *places)), word(part * _LANES32)))
            code.store(mask, masks, builder.mul(loop.index, word(8)))
        return context.get_dummy_value()

    return types.void(uint64, uint64, int64, uint64), write


def _squeeze(bits: int) -> Any:
    """`squeeze16` or `squeeze32`."""
    kind = ir.IntType(bits)

    @intrinsic
    def squeeze(context: Any, base: Any, tuned: Any, groups: Any, count: Any, kept_base: Any, kept_tuned: Any) -> Any:
        """How many pairs of the ``count`` groups whose numbers are at the address ``groups``, of int64, differ.

        These are put side by side to ``kept_base`` and ``kept_tuned``, and anything up to a whole vector behind them. Where `AVX512`.
        """

        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            base, tuned, groups, count, *kept = arguments
            code = Code(builder)
            ends = [code.kept(each) for each in kept]
            with code.each(count) as loop:
                group = code.load_word(groups, builder.mul(loop.index, word(8)))
                for part in range(0, GROUP * bits // 8, VECTOR_BYTES):
                    offset = builder.add(builder.mul(group, word(GROUP * bits // 8)), word(part))
                    w, v = code.load(base, offset, kind), code.load(tuned, offset, kind)
                    differs = builder.icmp_unsigned("!=", w, v)
                    for end, side in zip(ends, (w, v), strict=True):
                        end.value = code.squeeze_within(side, differs, end.value)
            return builder.udiv(builder.sub(ends[0].value, kept[0]), word(bits // 8))

        return int64(uint64, uint64, uint64, int64, uint64, uint64), write

    return squeeze


squeeze16, squeeze32 = _squeeze(16), _squeeze(32)


@intrinsic
def joint_places(context: Any, base: Any, tuned: Any, groups: Any, places: Any, masks: Any) -> Any:
    """(n, how many of them are far apart, largest |pattern| of the base, the smallest but for zeros; 65,536 where all are zeros).

    Sets ``places``, the address of uint32, to the `JOINT` cells of n pairs of bf16 patterns: those that differ, in order, or, on a
    machine that cannot squeeze, all. The difference of two patterns of one sign is the step; that of two signs is far from any, modulo
    2^16. masks: as in `survey16`, of pairs that differ and are far apart.
    """

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base, tuned, groups, places, masks = arguments
        code = Code(builder)
        end, far = code.kept(places), code.kept(word(0))
        most, least = code.kept(zeros(INT16, _LANES16)), code.kept(code.like(zeros(INT16, _LANES16), 0xFFFF))
        with code.each(groups) as loop:
            mask = word(0)
            for part in range(GROUP // _LANES16):
                offset = builder.add(builder.mul(loop.index, word(2 * GROUP)), word(part * VECTOR_BYTES))
                w, v = code.load(base, offset, INT16), code.load(tuned, offset, INT16)
                pattern = builder.and_(w, code.like(w, 0x7FFF))
                row = code.smaller(builder.add(builder.sub(v, w), code.like(w, REACH)), code.like(w, 15))
                differs = _differ(code, w, v)
                most.value = code.larger(most.value, pattern)
                least.value = code.smaller(least.value, builder.sub(pattern, code.like(w, 1)))
                here = code.mask(builder.and_(differs, builder.icmp_unsigned("==", row, code.like(row, 15))))
                mask = builder.or_(mask, builder.shl(here, word(part * _LANES16)))
                for half in range(2):
                    rows, patterns, chosen = (code.parts(each, 2)[half] for each in (row, pattern, differs))
                    rows = builder.shl(code.widened(rows, INT32), code.like(zeros(INT32, _LANES32), 15))
                    cells = builder.or_(rows, code.widened(patterns, INT32))
                    if AVX512:
                        end.value = code.squeeze_within(cells, chosen, end.value)
                    elif SQUEEZES:
                        end.value = code.squeeze(cells, chosen, end.value)
                    else:
                        code.store(cells, end.value, word(0))
                        end.value = builder.add(end.value, word(VECTOR_BYTES))
            code.store(mask, masks, builder.mul(loop.index, word(8)))
            far.value = builder.add(far.value, builder.ctpop(mask))
        count = builder.lshr(builder.sub(end.value, places), word(2))
        smallest = builder.add(code.smallest(least.value), word(1))
        return context.make_tuple(builder, signature.return_type, [count, far.value, code.largest(most.value), smallest])

    return types.UniTuple(int64, 4)(uint64, uint64, int64, uint64, uint64), write


@intrinsic
def updates32(context: Any, base: Any, tuned: Any, groups: Any, eta: Any, packed: Any, peaks: Any, sums: Any, cells: Any) -> Any:
    """(how many pairs of finite fp32 values changed, differ, pass the probe, whether one is odd): the updates of all of them, counted.

    Adds 1 to the ABSOLUTE and the RELATIVE cell of each pair, in the array that begins at ``cells``, and sets ``packed``, the address of
    uint32, to the number of the first and, in the high half, of the second. peaks: the address of 4 uint32, set to the largest fp32
    patterns of the updates and the relative updates, of all pairs and of those that changed. sums: of 9 float64, to TOTAL, SQUARE,
    RELATIVE_TOTAL and RELATIVE_SQUARE of all pairs, then of those that changed, and to the sum of the base's squares. A pair is odd where
    its float32 update is subnormal, overflows or is none, of a value that is not finite: then nothing of this means anything, and what
    was added is to be taken away again.

    A relative update is taken times an estimate of the reciprocal, bettered by a step of Newton's in float64: to 2^-40, without a
    division of float64. Vectors wait for arithmetic and increments for memory: those of one vector are done while the next is calculated.
    """

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base, tuned, groups, eta, packed, peaks, sums, cells = arguments
        code = Code(builder)
        none = zeros(INT32, _LANES32)
        changed, differ, probe, odd = (code.kept(word(0)) for _ in range(4))
        largest = [code.kept(none) for _ in range(4)]
        totals = [code.kept(zeros(FLOAT64, VECTOR_BYTES // 8)) for _ in range(9)]
        limit = code.repeated(eta, VECTOR_BYTES // 8)
        vectors = builder.mul(groups, word(GROUP // _LANES32))
        with code.each(vectors) as loop:
            offset = builder.mul(loop.index, word(VECTOR_BYTES))
            for side in (base, tuned):
                code.prefetch(side, builder.add(offset, word(_AHEAD)))
            w, v = code.load(base, offset, INT32), code.load(tuned, offset, INT32)
            magnitudes = [builder.and_(each, code.like(each, _MAGNITUDE)) for each in (w, v)]
            larger = code.bits_as(code.larger(code.larger(*magnitudes), code.like(w, _NORMAL)), FLOAT32)
            a, b = (code.bits_as(each, FLOAT32) for each in (w, v))
            update = builder.and_(code.bits_as(builder.fsub(b, a), INT32), code.like(w, _MAGNITUDE))
            share = code.bits_as(builder.fdiv(code.bits_as(update, FLOAT32), larger), INT32)

            distance = builder.sub(*(_order(code, each, magnitude) for each, magnitude in zip((w, v), magnitudes, strict=True)))
            step = code.smaller(distance, builder.sub(none, distance))
            moved = builder.icmp_unsigned("!=", step, none)
            octave = code.bits_as(builder.sitofp(step, ir.VectorType(FLOAT32, _LANES32)), INT32)
            octave = builder.sub(builder.lshr(octave, code.like(w, 23)), code.like(w, 125))
            plane = builder.select(builder.icmp_unsigned(">", step, code.like(w, 3)), octave, step)
            inside = code.larger(builder.lshr(share, code.like(w, 16)), code.like(w, RELATIVE_FIRST))
            place = builder.add(builder.mul(plane, code.like(w, RELATIVE_PLANE)), builder.sub(inside, code.like(w, RELATIVE_FIRST)))
            flag = builder.select(moved, code.like(w, 1 << 15), none)
            cell = builder.or_(builder.shl(place, code.like(w, 16)), builder.or_(flag, builder.lshr(update, code.like(w, 16))))
            code.store(cell, packed, offset)

            nonzero = builder.icmp_unsigned("!=", builder.or_(*magnitudes), none)
            changed.value = builder.add(changed.value, builder.ctpop(code.mask(moved)))
            differs = builder.and_(builder.icmp_unsigned("!=", w, v), nonzero)
            differ.value = builder.add(differ.value, builder.ctpop(code.mask(differs)))
            subnormal = builder.icmp_unsigned("<", builder.sub(update, code.like(w, 1)), code.like(w, _NORMAL - 1))
            beyond = builder.icmp_unsigned(">=", update, code.like(w, _INFINITY))
            odd.value = builder.or_(odd.value, code.mask(builder.or_(subnormal, beyond)))
            peak = [update, share, *(builder.select(moved, each, none) for each in (update, share))]
            for held, each in zip(largest, peak, strict=True):
                held.value = code.larger(held.value, each)

            reciprocal = builder.fdiv(code.like(larger, 1.0), larger, flags=("arcp",))
            halves = [code.parts(each, 2) for each in (a, b, larger, reciprocal)]
            for half in range(2):
                one, other, larger_one, inverse = (code.float64(each[half]) for each in halves)
                x = code.bits_as(builder.fsub(other, one), INT64)
                x = code.bits_as(builder.and_(x, code.like(x, (1 << 63) - 1)), FLOAT64)
                better = builder.fsub(code.like(x, 2.0), builder.fmul(larger_one, inverse, flags=("contract",)), flags=("contract",))
                y = builder.fmul(x, builder.fmul(inverse, better))
                passes = builder.fcmp_ordered(">", x, builder.fmul(limit, larger_one))
                probe.value = builder.add(probe.value, builder.ctpop(code.mask(passes)))
                here = code.parts(moved, 2)[half]
                for first, (absolute, relative) in ((0, (x, y)), (4, (_where(code, here, x), _where(code, here, y)))):
                    for number, value in enumerate((absolute, relative)):
                        total, square = totals[first + 2 * number], totals[first + 2 * number + 1]
                        total.value = code.add(total.value, value)
                        square.value = code.multiply_add(value, value, square.value)
                totals[8].value = code.multiply_add(one, one, totals[8].value)
            with builder.if_then(builder.icmp_unsigned("!=", loop.index, word(0)), likely=True):
                _increment(code, builder.add(packed, builder.sub(offset, word(VECTOR_BYTES))), cells)
        with builder.if_then(builder.icmp_unsigned("!=", vectors, word(0)), likely=True):
            _increment(code, builder.add(packed, builder.mul(builder.sub(vectors, word(1)), word(VECTOR_BYTES))), cells)
        for number, each in enumerate(largest):
            code.store(builder.trunc(code.largest(each.value), INT32), peaks, word(4 * number))
        for number, each in enumerate(totals):
            code.store(code.total([each.value]), sums, word(8 * number))
        return context.make_tuple(builder, signature.return_type, [changed.value, differ.value, probe.value, odd.value])

    return types.UniTuple(int64, 4)(uint64, uint64, int64, float64, uint64, uint64, uint64, uint64), write


def _increment(code: Code, packed: Any, cells: Any) -> None:
    """Add 1 to the two cells of each pair of a vector that lies at ``packed``."""
    builder = code.builder
    pairs = [code.load_word(packed, word(8 * number)) for number in range(VECTOR_BYTES // 8)]
    for pair in pairs:
        for number, first in enumerate((ABSOLUTE, RELATIVE, ABSOLUTE, RELATIVE)):
            place = builder.and_(builder.lshr(pair, word(16 * number)), word(0xFFFF))
            code.increment(cells, builder.add(place, word(first)))


def _order(code: Code, pattern: Any, magnitude: Any) -> Any:
    """`pair_vectors.order` of fp32 patterns."""
    builder = code.builder
    sign = builder.ashr(pattern, code.like(pattern, 31))
    place = builder.sub(builder.xor(magnitude, sign), sign)
    odd = builder.and_(builder.ashr(place, code.like(place, 16)), code.like(place, 1))
    return builder.ashr(builder.add(builder.add(place, code.like(place, 0x7FFF)), odd), code.like(place, 16))


def _where(code: Code, flags: Any, values: Any) -> Any:
    """``values``, or 0.0 where there is no flag."""
    return code.builder.select(flags, values, code.like(values, 0.0))
