"""Checkpoints: references to them, files that can be read by range, and the tensors that their headers describe."""

from analyzers.checkpoints.adapters.merged_checkpoint import MergedCheckpoint, open_checkpoint, open_whole
from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.checkpoint_coverage import account_notes, read_coverage, side_coverage
from analyzers.checkpoints.formats.safetensors_header import read_header
from analyzers.checkpoints.in_memory import MemoryRepository, MemoryTensor
from analyzers.checkpoints.local import LocalRepository
from analyzers.checkpoints.matching.align import Alignment, Group, Matching, Unmatched, align
from analyzers.checkpoints.matching.layout_notes import layout_notes, moved_layers
from analyzers.checkpoints.matching.tied_heads import is_copy, repeated, replaced_pairs, states_ties, tied_copies
from analyzers.checkpoints.reading.read_plan import Plan
from analyzers.checkpoints.reading.spans import Span, row_length, whole_rows, whole_spans
from analyzers.checkpoints.reading.stream import Chunk, Step, stream
from analyzers.checkpoints.reference import Summand, joined, parse_reference, quoted, quoted_names, summands, with_commits
from analyzers.checkpoints.repository import Access, RangeFile, Repository, read_range
from analyzers.checkpoints.sides import canonical_name, canonical_names, check_side, not_decoded, open_sides
from analyzers.checkpoints.tensor import DTYPE_BITS, Tensor
from analyzers.checkpoints.tensor_names.adapters import adapter_rank
from analyzers.checkpoints.tensor_names.filters import select
from analyzers.checkpoints.tensor_names.roles import ROLES
from analyzers.checkpoints.weight_files.file_names import is_index, is_weights

__all__ = [
    "DTYPE_BITS", "ROLES", "Access", "Alignment", "Checkpoint", "Chunk", "Group", "LocalRepository", "Matching",
    "MemoryRepository", "MemoryTensor", "MergedCheckpoint", "Plan", "RangeFile", "Repository", "Span", "Step", "Summand",
    "Tensor", "Unmatched", "account_notes", "adapter_rank", "align", "canonical_name", "canonical_names", "check_side",
    "is_copy", "is_index", "is_weights", "joined", "layout_notes", "moved_layers", "not_decoded", "open_checkpoint",
    "open_sides", "open_whole", "parse_reference", "quoted", "quoted_names", "read_coverage", "read_header", "read_range",
    "repeated", "replaced_pairs", "row_length", "select", "side_coverage", "states_ties", "stream", "summands", "tied_copies",
    "whole_rows", "whole_spans", "with_commits",
]  # fmt: skip
