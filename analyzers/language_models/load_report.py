"""Determines what transformers loads from a checkpoint, by its configuration and the names and shapes of its tensors alone.

The model is built without weights in a limited process (`loading`), and "loads" tensors without values under
transformers' own renaming and conversion. Nothing is read but headers, and no code of the repository runs.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from pydantic import TypeAdapter

from analyzers.checkpoints import Checkpoint, Tensor
from analyzers.core.errors import InvalidCheckpoint, MissingExtra
from analyzers.language_models.limited_process import LimitedProcess, limited_process


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The report of transformers' loader. Names are those of the model, after its own renaming.

    model: the class; missing: parameters without a stored tensor, which it initializes; buffers: buffers without a stored tensor, which
    keep their initial values; unexpected: tensors that it ignores, none if config.json names no class, since they may be heads; mismatched:
    (name, stored shape, expected shape); refused: why it raises, empty if it does not; by_config: whether it raises whatever the tensors
    are; fault: why it raises for an implementation or generation_config.json; instead: the class named in config.json, if transformers has
    no such class for its model_type and AutoModel takes ``model``.
    """

    model: str = ""
    missing: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()
    refused: str = ""
    by_config: bool = False
    fault: str = ""
    instead: str = ""


_REPORT = TypeAdapter(LoadReport)


class LoadingOracle(ExitStack):
    """Asks transformers about a checkpoint. A context manager: opening it starts the process, so that libraries load in the meantime."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self._checkpoint = checkpoint
        self._process: LimitedProcess | None = None
        if find_spec("transformers") is not None and find_spec("torch") is not None:
            self._process = self.enter_context(limited_process("loading"))

    def ask(self, generation: Any = None) -> LoadReport:
        """Return what transformers would report. generation: the contents of generation_config.json.

        Raises MissingExtra without transformers or a library that it needs, UnknownArchitecture for a class that it does not have,
        UnsupportedWeights for quantized weights, LimitExceeded, InvalidCheckpoint.
        """
        if self._process is None:
            raise MissingExtra("transformers is not installed: pip install 'mantissa[models]'.")
        tensors = [(tensor.name, tensor.shape) for tensor in loaded_tensors(self._checkpoint)]
        try:
            answer = self._process.ask("Building its model", "load", config=self._checkpoint.config, tensors=tensors, generation=generation)
        except RecursionError:
            raise InvalidCheckpoint("config.json is nested too deeply.") from None
        return _REPORT.validate_python(answer)


def loaded_tensors(checkpoint: Checkpoint) -> list[Tensor]:
    """List the tensors except those of other components, whose names begin with a folder."""
    return [tensor for tensor in (*checkpoint.tensors, *checkpoint.aliases) if "/" not in tensor.name]
