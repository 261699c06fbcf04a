"""Patterns of which nothing is asked but the binade.

No narrower format holds them, fp16's grid is not asked about them, and every limit that anything is compared with (fp16's
largest, its smallest) lies between binades: all patterns of an exponent answer all questions alike. Nine weights in ten of
most tensors are such. They are counted together, at one pattern for each exponent, and what that leaves unsaid (extremes,
squares) is kept beside the bins.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alike:
    """Patterns of the stored exponents ``first`` to ``last`` are alike if one of their ``low`` bits is set; all are, if ``low`` is 0.

    mantissa: how many bits it has; bias: what is to be taken from a stored exponent. All of a 16-bit pattern; of fp32, of the high
    half, in the plane of those whose 13 low bits are not all zero.
    """

    mantissa: int
    bias: int
    first: int
    last: int
    low: int


# bf16 below 2^-17: fp16 has not all of them, or its grid is asked about. Three zero bits make fp16 exact in bf16, four make bf16
# exact in E4M3; E5M2 takes more.
ALIKE = {
    "BF16": Alike(mantissa=7, bias=127, first=110, last=254, low=0x0F),
    "F16": Alike(mantissa=10, bias=15, first=1, last=30, low=0x07),
    "F32": Alike(mantissa=7, bias=127, first=1, last=254, low=0),
}
