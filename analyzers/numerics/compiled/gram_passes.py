"""Sums over units that stay in registers from the first to the last, as a loop of explicit vectors."""

from typing import Any

from llvmlite import ir

from analyzers.numerics.compiled.vector_code import (
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    VECTOR_BYTES,
    Code,
    cgutils,
    intrinsic,
    types,
    word,
    zeros,
)

LANES = VECTOR_BYTES // 4
"""fp32 numbers of a vector."""

SUMS, COUNTS = 3, 5
"""What `sum_pairs` finds of each pair of samples."""


@intrinsic
def sum_pairs(context: Any, grams: Any, norms: Any, inverse: Any, shape: Any, place: Any, thresholds: Any, sums: Any, counts: Any) -> Any:
    """What all units say about one sample and `LANES` others.

    Addresses of fp32 numbers: grams (n, S, S), norms and inverse (n, S), thresholds (`COUNTS`,). inverse: 0 where there is no gradient.
    shape: n, S; place: the sample, the first of the others. Puts to the addresses sums, (`SUMS`, S, S) in float64, and counts, (`COUNTS`,
    S, S) in 32 bits: sums of Gram matrices, cosines and similarities; and how many cosines are below each threshold. A pair without
    gradients has a cosine and a similarity of 0, and is below nothing.
    """

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        grams, norms, inverse, shape, place, thresholds, sums, counts = arguments
        (units, samples), (sample, first) = (cgutils.unpack_tuple(builder, each, 2) for each in (shape, place))
        code = Code(builder)
        numbers = ir.Constant(ir.VectorType(INT64, LANES), list(range(LANES)))
        flags = builder.icmp_unsigned("<", numbers, code.repeated(builder.sub(samples, first), LANES))

        def bytes_of(number: Any) -> Any:
            return builder.mul(number, word(4))

        def one(address: Any, number: Any) -> Any:
            return code.repeated(code.load_one(address, bytes_of(number), FLOAT32), LANES)

        limits = [one(thresholds, word(number)) for number in range(COUNTS)]
        added = [[code.kept(zeros(FLOAT64, LANES // 2)) for _ in range(2)] for _ in range(SUMS)]
        counted = [code.kept(zeros(INT32, LANES)) for _ in range(COUNTS)]
        within = builder.add(builder.mul(sample, samples), first)
        with code.each(units) as loop:
            row = builder.mul(loop.index, samples)
            gram = code.load_some(grams, bytes_of(builder.add(builder.mul(row, samples), within)), FLOAT32, flags)
            of_others = code.load_some(inverse, bytes_of(builder.add(row, first)), FLOAT32, flags)
            own = one(inverse, builder.add(row, sample))
            cosine = builder.fmul(builder.fmul(gram, own), of_others)
            ratio = builder.fmul(one(norms, builder.add(row, sample)), of_others)
            similarity = builder.fdiv(builder.fadd(ratio, ratio), builder.fadd(builder.fmul(ratio, ratio), code.like(ratio, 1.0)))
            pair = builder.and_(*(builder.fcmp_ordered(">", each, zeros(FLOAT32, LANES)) for each in (own, of_others)))
            similarity = builder.select(pair, similarity, zeros(FLOAT32, LANES))
            for halves, numbers in zip(added, (gram, cosine, similarity), strict=True):
                for half, part in zip(halves, code.parts(numbers, 2), strict=True):
                    half.value = builder.fadd(half.value, code.float64(part))
            for count, limit in zip(counted, limits, strict=True):
                below = builder.and_(pair, builder.fcmp_ordered("<", cosine, limit))
                count.value = builder.add(count.value, code.widened(below, INT32))
        matrix = builder.mul(samples, samples)
        for number, halves in enumerate(added):
            start = builder.add(builder.mul(word(number), matrix), within)
            for part, (half, shown) in enumerate(zip(halves, code.parts(flags, 2), strict=True)):
                code.store_some(half.value, sums, builder.mul(builder.add(start, word(part * LANES // 2)), word(8)), shown)
        for number, count in enumerate(counted):
            code.store_some(count.value, counts, bytes_of(builder.add(builder.mul(word(number), matrix), within)), flags)
        return context.get_dummy_value()

    return types.void(grams, norms, inverse, shape, place, thresholds, sums, counts), write
