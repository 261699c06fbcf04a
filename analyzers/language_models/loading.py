"""What transformers loads of a checkpoint, by its configuration and the names and shapes of its tensors alone.

The model is built without weights in a bounded process (`bounded_process.loading`), and "loads" tensors without values under
transformers' own renaming and conversion. Nothing is read but headers, and no code of the repository runs.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

from analyzers import limits
from analyzers.checkpoints import Checkpoint, Tensor, quoted
from analyzers.errors import InvalidCheckpoint, LimitExceeded, MantissaError, MissingExtra, UnknownArchitecture, UnsupportedWeights
from analyzers.language_models.bounded_process import Bounded, ProgramFailed, hand_back, open_bounded


@dataclass(frozen=True, slots=True)
class Loading:
    """The report of transformers' loader. Names are those of the model, after its own renaming.

    model: the class; missing: parameters without a stored tensor, which it initializes; buffers: the same, which keep their initial
    values; unexpected: tensors that it ignores, none if config.json names no class, as heads
    are none of the base model's; mismatched: (name, stored shape, expected shape); refused: why it raises for these tensors,
    empty if it does not.
    """

    model: str
    missing: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()
    refused: str = ""


class LoadingOracle:
    """Asks transformers about a checkpoint. A context manager: opening it starts the process, so that libraries load meanwhile."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._process: Bounded | None = None
        try:
            _check(checkpoint)
            self._impossible: MantissaError | None = None
            self._process = open_bounded("loading")
        except MantissaError as error:
            self._impossible = error

    def ask(self) -> Loading:
        """Return what transformers would report. Raises MissingExtra without it, UnknownArchitecture for a class that it does not have,
        UnsupportedWeights, InvalidCheckpoint for a configuration from which no model can be built, LimitExceeded.
        """
        if self._impossible is not None:
            raise self._impossible
        assert self._process is not None
        if self._process.has_ended():  # it waited for too long
            self._process = Bounded("loading")
        tensors = [(tensor.name, tensor.shape) for tensor in loaded_tensors(self._checkpoint)]
        try:
            answer = self._process.ask("load", config=self._checkpoint.config, tensors=tensors)
        except ProgramFailed as failed:
            raise _error(failed) from None
        except RecursionError:
            raise InvalidCheckpoint("config.json is nested too deeply.") from None
        return _loading(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            if kind is None:
                hand_back(self._process)
            else:  # it may be computing
                self._process.close()


def loaded_tensors(checkpoint: Checkpoint) -> list[Tensor]:
    """The tensors in files that transformers reads: not those outside an index, nor those of other components, named after their folder."""
    outside = {number for number, file in enumerate(checkpoint.files) if file.path in checkpoint.outside_index}
    every = (*checkpoint.tensors, *checkpoint.aliases)
    return [tensor for tensor in every if tensor.file not in outside and "/" not in tensor.name]


def _check(checkpoint: Checkpoint) -> None:
    """Raise the reason why transformers cannot be asked about a checkpoint."""
    if find_spec("transformers") is None or find_spec("torch") is None:
        raise MissingExtra("transformers is not installed: pip install 'mantissa[models]'.")
    if checkpoint.quantization is not None:
        raise UnsupportedWeights(f"The weights are quantized ({checkpoint.quantization}).")


def _error(failed: ProgramFailed) -> MantissaError:
    if failed.failed == "seconds":
        return LimitExceeded(f"To build its model takes more than {limits.LOADING_SECONDS:,} seconds (MANTISSA_LOADING_SECONDS).")
    if failed.failed == "bytes":
        return LimitExceeded(f"To build its model takes more than {limits.LOADING_MEMORY:,} bytes of memory (MANTISSA_LOADING_MEMORY).")
    if failed.failed == "unknown":
        return UnknownArchitecture(f"transformers has no {quoted(failed.why, 100)}.")
    if failed.failed == "broke off":
        return InvalidCheckpoint("The process that builds its model ended unexpectedly.")
    return InvalidCheckpoint(f"No model can be built from config.json: {quoted(failed.why, 200)}.")


def _loading(answer: dict[str, Any]) -> Loading:
    return Loading(
        model=answer["class"],
        missing=tuple(answer.get("missing", ())),
        buffers=tuple(answer.get("buffers", ())),
        unexpected=tuple(answer.get("unexpected", ())),
        mismatched=tuple((name, tuple(stored), tuple(expected)) for name, stored, expected in answer.get("mismatched", ())),
        refused=answer.get("refused", ""),
    )
