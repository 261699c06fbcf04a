"""What neighbours show of an fp8 or fp4 ancestor: the counts that are taken of runs of 128.

Values of a scaled 8- or 4-bit float format keep the few significands of that format wherever they share a scale, for
scaling and rounding do the same to a significand in every binade. A run is 128 neighbours (fewer at the end of a row)
with at least 32 normal values among them; subnormal ones have lost the bits that would tell.

Of each run, one of:

- ``MANY``: more than 8 different significands. No run of an fp8 ancestor has that.
- ``DULL``: at most 8, but too few different values, or values too close to each other, to tell a floating grid from
  anything: constants, norms near 1, ternary and 4-bit weights with one scale, repeats.
- ``FEW_4``, ``FEW_8``: at most 4 (as of E5M2), or 5 to 8 (as of E4M3), but within reach of an integer grid.
- ``TELLING_4``, ``TELLING_8``: the same, and with a block of 16 whose smallest value lies so many binades below its
  largest as no grid of integers up to 127 and no 6-bit float has: ``DEEP_4`` and ``DEEP_8``. All its blocks of 16 have 3
  significands or more, which those of 4-bit floats have not; and one has more than 4 where the run has, for else it could
  be E5M2 with several scales.

Of each block of 16 of these runs, one of ``OFF_E2M1`` (its magnitudes are not t x {1, 2, 3, 4, 6, 8, 12} for any t, up to
rounding), ``ON_E2M1`` (they are), or ``ALL_E2M1`` (they are, and reach from t to 12 t, so that t is known). ``SCALED``
counts those that are with a t that is no power of two. Of each pair of such blocks ``PAIR_OFF`` or ``PAIR_ON``: whether one t
serves both. A block without a value but zero is none of these; nor is one with a value that is subnormal or not finite,
unless it is off the grid without that. Of a run with more than 16 significands, counted in 7 bits, one block is counted, as
``OFF_E2M1``: such are native values, and told by the first 32 of them.
"""

MANY, DULL, FEW_4, FEW_8, TELLING_4, TELLING_8 = range(6)
OFF_E2M1, ON_E2M1, ALL_E2M1, SCALED, PAIR_OFF, PAIR_ON = range(6, 12)
RUN_COUNTS = 12

RUN = 128
BLOCK = 16
NORMALS_OF_A_RUN = 32
SIGNIFICANDS_OF_FP8 = 8

# A run of 16 scaled E2M1 blocks, with scales in fp8, has at most 13; a native one passes that within 32 values.
SIGNIFICANDS_OF_FP4 = 16

# Fewer different magnitudes are those of a 4-bit format, or repeats. A run that is cut short by the row has fewer.
MAGNITUDES_OF_A_RUN = 20
MAGNITUDES_OF_A_SHORT_RUN = 12
EXPONENTS_OF_A_RUN = 6

# Binades from the largest value of a block of 16 to the smallest. 127 to 1 (int8) has 7 at most, 60 to 1 (the 6-bit
# format E2M3) 6. The other 6-bit format, E3M2, has 448 to 1, which is 9, and like E5M2 no more than 4 significands.
DEEP_8 = 8
DEEP_4 = 10

# For ``DEEP_4`` subnormal values of so many steps count too. They were rounded by 1/16 at most, which leaves 448 to 1 within 9
# binades. It would not leave 127 to 1 within 7: they do not count for ``DEEP_8``.
EXACT_SUBNORMAL = 8

# A block that is asked for its significands has so many normal values: of 4 significands hardly ever fewer than 3 show.
VALUES_OF_A_BLOCK = 8
