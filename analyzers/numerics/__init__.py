"""Computes statistics of bit patterns: float formats, bit histograms, position-dependent counters, intervals for sampled shares."""

from analyzers.numerics.accumulator import Accumulator
from analyzers.numerics.bins import CODE_TYPE, NARROW, BinGroups, Bins, bins
from analyzers.numerics.changed_positions import ChangedPositions, intersections
from analyzers.numerics.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, TF32, FloatFormat
from analyzers.numerics.histogram import BitHistogram
from analyzers.numerics.intervals import student_t
from analyzers.numerics.pairs import PairCounter, PairSums
from analyzers.numerics.sketches import PairTables

__all__ = [
    "BF16", "CODE_TYPE", "FP8_E4M3", "FP8_E5M2", "FP16", "FP32", "NARROW", "TF32", "Accumulator", "BinGroups", "Bins", "BitHistogram",
    "ChangedPositions", "FloatFormat", "PairCounter", "PairSums", "PairTables", "bins", "intersections", "student_t",
]  # fmt: skip
