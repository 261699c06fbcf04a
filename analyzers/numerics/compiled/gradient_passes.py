"""Gradients of many units at once, a lane for each, as loops of explicit vectors: made of inputs, multiplied with one another, summed."""

from typing import Any

from llvmlite import ir

from analyzers.numerics.compiled.vector_code import (
    AVX512,
    FLOAT32,
    FLOAT64,
    INT32,
    VECTOR_BYTES,
    Code,
    cgutils,
    intrinsic,
    types,
    word,
    zeros,
)

LANES = VECTOR_BYTES // 4
"""Units of a vector."""

VECTORS = 2 if AVX512 else 1
"""Vectors of units that are made together: with `COLUMNS` of each, all registers are in use."""

COLUMNS = 12 if AVX512 else 6
"""Numbers of an input that units are multiplied with at once: an input is kept in panels of so many columns."""

SIDE = 4 if AVX512 else 2
"""Samples on each side of a block: as many products at once as there are registers for."""

SUMS = 4
"""What `sum_weights` adds up."""


@intrinsic
def pack(context: Any, place: Any, row: Any, shape: Any, factor: Any, packed: Any) -> Any:
    """Put ``factor`` times the first fp32 numbers of rows, a whole vector's for each of `VECTORS`, side by side to the address ``packed``.

    place: the address of the first; row: bytes from one row to the next. shape: rows, and how many numbers there are in one; 0 for others.
    """

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, row, shape, factor, packed = arguments
        rows, count = cgutils.unpack_tuple(builder, shape, 2)
        code = Code(builder)
        flags, by = code.first(count, LANES * VECTORS), code.repeated(builder.fptrunc(factor, FLOAT32), LANES)
        with code.each(rows) as loop:
            here = builder.mul(loop.index, row)
            there = builder.mul(loop.index, word(VECTORS * VECTOR_BYTES))
            for number, some in enumerate(code.parts(flags, VECTORS)):
                offset = word(number * VECTOR_BYTES)
                numbers = code.load_some(place, builder.add(here, offset), FLOAT32, some)
                code.store(builder.fmul(numbers, by), packed, builder.add(there, offset))
        return context.get_dummy_value()

    return types.void(place, row, shape, factor, packed), write


@intrinsic
def pack_panels(context: Any, row: Any, width: Any, factor: Any, panel: Any, plane: Any) -> Any:
    """Put ``factor`` times the ``width`` fp32 numbers at the address ``row`` to panels, `COLUMNS` to each, 0 behind the last.

    panel: the address in the first; ``plane`` bytes behind it comes the next.
    """

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, width, factor, panel, plane = arguments
        code = Code(builder)
        by = code.repeated(builder.fptrunc(factor, FLOAT32), COLUMNS)
        panels = builder.udiv(builder.add(width, word(COLUMNS - 1)), word(COLUMNS))
        with code.each(panels) as loop:
            first = builder.mul(loop.index, word(COLUMNS))
            flags = code.first(builder.sub(width, first), COLUMNS)
            numbers = code.load_some(row, builder.mul(first, word(4)), FLOAT32, flags)
            code.store(builder.fmul(numbers, by), panel, builder.mul(loop.index, plane))
        return context.get_dummy_value()

    return types.void(row, width, factor, panel, plane), write


@intrinsic
def outer_products(context: Any, panel: Any, packed: Any, tokens: Any, out: Any, plane: Any, more: Any) -> Any:
    """Sums over tokens of `COLUMNS` numbers times `VECTORS` vectors, which lie side by side at the addresses ``panel`` and ``packed``.

    To the address ``out`` come the sums of the first vector, column by column, and ``plane`` bytes behind them those of the next; ``more``:
    what is there is added to.
    """

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        panel, packed, tokens, out, plane, more = arguments
        code = Code(builder)
        places = [
            [builder.add(builder.mul(plane, word(number)), word(column * VECTOR_BYTES)) for number in range(VECTORS)]
            for column in range(COLUMNS)
        ]
        sums = [[code.kept(zeros(FLOAT32, LANES)) for _ in range(VECTORS)] for _ in range(COLUMNS)]
        with code.each(tokens) as loop:
            numbers, vectors = builder.mul(loop.index, word(4 * COLUMNS)), builder.mul(loop.index, word(VECTORS * VECTOR_BYTES))
            units = [code.load(packed, builder.add(vectors, word(number * VECTOR_BYTES)), FLOAT32) for number in range(VECTORS)]
            for column, row in enumerate(sums):
                one = code.repeated(code.load_one(panel, builder.add(numbers, word(4 * column)), FLOAT32), LANES)
                for total, each in zip(row, units, strict=True):
                    total.value = code.multiply_add(one, each, total.value)
        every = [pair for row, offsets in zip(sums, places, strict=True) for pair in zip(row, offsets, strict=True)]
        with builder.if_then(more):
            for total, offset in every:
                total.value = code.add(total.value, code.load(out, offset, FLOAT32))
        for total, offset in every:
            code.store(total.value, out, offset)
        return context.get_dummy_value()

    return types.void(panel, packed, tokens, out, plane, more), write


@intrinsic
def inner_products(context: Any, one: Any, other: Any, stride: Any, count: Any, block: Any, row: Any, more: Any) -> Any:
    """Sums of ``count`` products, a lane for each unit, of each of `SIDE` samples with each of as many others.

    one, other: addresses of the first of their vectors, which lie side by side; the next sample's are ``stride`` bytes behind. To the
    address ``block`` come the sums, ``row`` bytes from one of the first samples to the next; ``more``: what is there is added to.
    """

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one, other, stride, count, block, row, more = arguments
        code = Code(builder)
        ours, theirs = ([builder.add(first, builder.mul(stride, word(sample))) for sample in range(SIDE)] for first in (one, other))
        sums = [[code.kept(zeros(FLOAT32, LANES)) for _ in range(SIDE)] for _ in range(SIDE)]
        with code.each(count) as loop:
            offset = builder.mul(loop.index, word(VECTOR_BYTES))
            mine, others = ([code.load(each, offset, FLOAT32) for each in side] for side in (ours, theirs))
            for totals, a in zip(sums, mine, strict=True):
                for total, b in zip(totals, others, strict=True):
                    total.value = code.multiply_add(a, b, total.value)
        every = [
            (total, builder.add(builder.mul(row, word(i)), word(j * VECTOR_BYTES)))
            for i, totals in enumerate(sums)
            for j, total in enumerate(totals)
        ]
        with builder.if_then(more):
            for total, offset in every:
                total.value = code.add(total.value, code.load(block, offset, FLOAT32))
        for total, offset in every:
            code.store(total.value, block, offset)
        return context.get_dummy_value()

    return types.void(one, other, stride, count, block, row, more), write


@intrinsic
def spread(context: Any, blocks: Any, place: Any, shape: Any, grams: Any) -> Any:
    """Of one sample and `LANES` others the products, a vector for each pair, to the Gram matrix of each lane's unit.

    blocks: the address of the vectors, of which those below the diagonal are there; place: the sample, the first of the others. shape:
    pairs in a row of blocks; S; how many units there are, at most `LANES`. grams: the address of the first unit's (S, S).
    """

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        blocks, place, shape, grams = arguments
        sample, first = cgutils.unpack_tuple(builder, place, 2)
        width, samples, units = cgutils.unpack_tuple(builder, shape, 3)
        code = Code(builder)

        def pair(number: int) -> Any:
            other = builder.add(first, word(number))
            later = builder.icmp_unsigned(">", other, sample)
            row, column = builder.select(later, other, sample), builder.select(later, sample, other)
            return code.load(blocks, builder.mul(builder.add(builder.mul(row, width), column), word(VECTOR_BYTES)), FLOAT32)

        flags = code.first(builder.sub(samples, first), LANES)
        start = builder.add(builder.mul(sample, samples), first)
        for unit, row in enumerate(code.transposed([pair(number) for number in range(LANES)])):
            with builder.if_then(builder.icmp_unsigned("<", word(unit), units)):
                matrix = builder.mul(builder.mul(samples, samples), word(unit))
                code.store_some(row, grams, builder.mul(builder.add(matrix, start), word(4)), flags)
        return context.get_dummy_value()

    return types.void(blocks, place, shape, grams), write


@intrinsic
def sum_weights(context: Any, place: Any, stride: Any, samples: Any, limits: Any, sums: Any, bins: Any, dropped: Any) -> Any:
    """What one weight of each of `LANES` units brings to `gradients.WeightCounts`. Returns how many of them have a sign in two samples.

    place: address of their gradients in the first sample; the next sample's are ``stride`` bytes behind.
    limits: address of the smallest and largest ratio and the smallest variance that are told apart, and of S and S - 1, fp32. sums:
    address of (`SUMS`, `LANES`) float64; bins: of counters in 32 bits, by the first bits of a ratio, all but ``dropped``.
    """

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, stride, samples, limits, sums, bins, dropped = arguments
        code = Code(builder)
        none, ones = zeros(FLOAT32, LANES), zeros(INT32, LANES)
        total, squares = code.kept(none), code.kept(none)
        positive, negative = code.kept(ones), code.kept(ones)
        with code.each(samples) as loop:
            each = code.load(place, builder.mul(loop.index, stride), FLOAT32)
            total.value = builder.fadd(total.value, each)
            squares.value = code.multiply_add(each, each, squares.value)
            for count, sign in ((positive, ">"), (negative, "<")):
                count.value = builder.add(count.value, code.widened(builder.fcmp_ordered(sign, each, none), INT32))
        smallest, largest, least, number, others = (
            code.repeated(code.load_one(limits, word(4 * each), FLOAT32), LANES) for each in range(5)
        )
        mean = builder.fdiv(total.value, number)
        signal = builder.fmul(mean, mean)
        variance = builder.fdiv(builder.fsub(squares.value, builder.fmul(number, signal)), others)
        variance = code.larger_float(variance, none)
        ratio = builder.fdiv(signal, code.larger_float(variance, least))
        ratio = code.smaller_float(code.larger_float(ratio, smallest), largest)
        plus, minus = (code.float32(each.value) for each in (positive, negative))
        signed = builder.fadd(plus, minus)
        counted = builder.fcmp_ordered(">", signed, code.like(none, 1.0))
        pairs = builder.fmul(signed, builder.fsub(signed, code.like(none, 1.0)))
        opposite = builder.fmul(plus, minus)
        conflict = builder.fdiv(builder.fadd(opposite, opposite), builder.select(counted, pairs, code.like(none, 1.0)))
        difference = builder.fsub(code.larger_float(plus, minus), code.smaller_float(plus, minus))
        agreement = builder.fdiv(difference, builder.select(counted, signed, code.like(none, 1.0)))
        found = builder.select(counted, conflict, none), builder.select(counted, agreement, none), signal, variance
        for row, numbers in enumerate(found):
            for part, half in enumerate(code.parts(numbers, 2)):
                offset = word(8 * LANES * row + 4 * LANES * part)
                code.store(builder.fadd(code.load(sums, offset, FLOAT64), code.float64(half)), sums, offset)
        moving = code.widened(builder.fcmp_ordered(">", signed, none), INT32)
        bits = builder.lshr(code.bits_as(ratio, INT32), code.repeated(builder.trunc(dropped, INT32), LANES))
        for lane in range(LANES):
            at = builder.gep(builder.inttoptr(bins, INT32.as_pointer()), [builder.extract_element(bits, ir.Constant(INT32, lane))])
            builder.store(builder.add(builder.load(at), builder.extract_element(moving, ir.Constant(INT32, lane))), at)
        return builder.ctpop(code.mask(counted))

    return types.int64(place, stride, samples, limits, sums, bins, dropped), write
