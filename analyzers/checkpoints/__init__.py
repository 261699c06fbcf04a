"""Checkpoints: references to them, files that can be read by range, and the tensors that their headers describe."""

from analyzers.checkpoints.account import account_notes, base_coverage, read_coverage, tuned_coverage, undecoded
from analyzers.checkpoints.adapters import adapter_rank
from analyzers.checkpoints.align import TIED, Alignment, Group, Misshapen, Pair, Relaid, Resized, Unmatched, align
from analyzers.checkpoints.checkpoint import Checkpoint, open_checkpoint
from analyzers.checkpoints.filters import select
from analyzers.checkpoints.forms.copies import RelaidCopies
from analyzers.checkpoints.forms.probe import Reader, remaining_budget
from analyzers.checkpoints.header import Header, HeaderTensor, read_header
from analyzers.checkpoints.layout import is_index, is_weights
from analyzers.checkpoints.layout_notes import form_words, layout_notes, moved_layers
from analyzers.checkpoints.local import LocalRepository
from analyzers.checkpoints.memory import MemoryRepository, MemoryTensor
from analyzers.checkpoints.names import ROLES
from analyzers.checkpoints.plan import Plan
from analyzers.checkpoints.reference import Reference, parse_reference, quoted
from analyzers.checkpoints.repository import Access, RangeFile, Repository, read_range
from analyzers.checkpoints.sides import canonical_names, check_side, open_sides
from analyzers.checkpoints.spans import Sides, Span, row_length, whole_spans
from analyzers.checkpoints.stream import Chunk, Step, stream
from analyzers.checkpoints.tensor import DTYPE_BITS, FLOAT_DTYPES, Tensor
from analyzers.checkpoints.ties import is_copy, repeated, replaced_pairs, states_ties, tied_copies

__all__ = [
    "DTYPE_BITS", "FLOAT_DTYPES", "ROLES", "TIED", "Access", "Alignment", "Checkpoint", "Chunk", "Group", "Header", "HeaderTensor",
    "LocalRepository", "MemoryRepository", "MemoryTensor", "Misshapen", "Pair", "Plan", "RangeFile", "Reader", "Reference", "Relaid",
    "RelaidCopies", "Repository", "Resized", "Sides", "Span", "Step", "Tensor", "Unmatched", "account_notes", "adapter_rank", "align",
    "base_coverage", "canonical_names", "check_side", "form_words", "is_copy", "is_index", "is_weights", "layout_notes", "moved_layers",
    "open_checkpoint", "open_sides", "parse_reference", "quoted", "read_coverage", "read_header", "read_range", "remaining_budget",
    "repeated", "replaced_pairs", "row_length", "select", "states_ties", "stream", "tied_copies", "tuned_coverage", "undecoded",
    "whole_spans",
]  # fmt: skip
