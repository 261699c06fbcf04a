"""Where weights come from: references, files that can be read by range, and what their headers say."""

from analyzers.checkpoints.checkpoint import Checkpoint, open_checkpoint
from analyzers.checkpoints.decode import scale_reads
from analyzers.checkpoints.filters import select
from analyzers.checkpoints.header import Header, HeaderTensor, read_header
from analyzers.checkpoints.local import LocalRepository
from analyzers.checkpoints.names import ROLES
from analyzers.checkpoints.reference import Reference, parse_reference, quoted
from analyzers.checkpoints.repository import Access, RangeFile, Repository, read_range
from analyzers.checkpoints.sample import Block, Sample, plan_sample
from analyzers.checkpoints.stream import Chunk, Span, Step, row_length, stream, whole_spans
from analyzers.checkpoints.tensor import DTYPE_BITS, FLOAT_DTYPES, Tensor

__all__ = [
    "DTYPE_BITS",
    "FLOAT_DTYPES",
    "ROLES",
    "Access",
    "Block",
    "Checkpoint",
    "Chunk",
    "Header",
    "HeaderTensor",
    "LocalRepository",
    "RangeFile",
    "Reference",
    "Repository",
    "Sample",
    "Span",
    "Step",
    "Tensor",
    "open_checkpoint",
    "parse_reference",
    "plan_sample",
    "quoted",
    "read_header",
    "read_range",
    "row_length",
    "scale_reads",
    "select",
    "stream",
    "whole_spans",
]
