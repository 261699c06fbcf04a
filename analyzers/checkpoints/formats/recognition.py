"""Reads the header of a weight file in the format that its name says."""

from analyzers.checkpoints.formats.gguf_header import read_gguf
from analyzers.checkpoints.formats.pickles.torch_file import read_pickled
from analyzers.checkpoints.formats.safetensors_header import Header, read_header
from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.weight_files.file_names import GGUF, SAFETENSORS


def read_any_header(file: RangeFile, checked: int) -> Header:
    """Read the header of a weight file. checked: see `read_pickled`. Raises InvalidCheckpoint, UnsupportedWeights, LimitExceeded."""
    if file.path.endswith(SAFETENSORS):
        return read_header(file)
    return read_gguf(file) if file.path.endswith(GGUF) else read_pickled(file, checked)
