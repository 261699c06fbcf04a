"""Determines what transformers loads from a checkpoint, by its configuration and the names and shapes of its tensors alone.

The model is built without weights in a process with limits (`loading`), and "loads" tensors without values under
transformers' own renaming and conversion. Nothing is read but headers, and no code of the repository runs.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

from analyzers.checkpoints import Checkpoint, Tensor
from analyzers.core import limits
from analyzers.core.errors import MissingExtra
from analyzers.language_models.limited_call import limited_call

_NOT_NEEDED = ("torchao", "scipy", "sklearn", "pandas")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The report of transformers' loader. Names are those of the model, after its own renaming.

    model: the class; missing: parameters without a stored tensor, which it initializes; buffers: buffers without a stored tensor, which
    keep their initial values; unexpected: tensors that it ignores, none if config.json names no class, since they may be heads; mismatched:
    (name, stored shape, expected shape); refused: why it raises, empty if it does not; by_config: whether it raises whatever the tensors
    are; fault: why it raises for an implementation or generation_config.json; instead: the class named in config.json, if transformers has
    no such class for its model_type and AutoModel takes ``model``; quantized: the method of quantized weights, of which nothing is loaded;
    dtype: stated by the configuration, empty if it states none; fp32, fp32_in_fp16: stored tensors that it keeps in fp32 whatever dtype is
    asked for, and if fp16 is; linears: stored tensors of linear layers, if the weights are quantized.
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
    quantized: str = ""
    dtype: str = ""
    fp32: tuple[str, ...] = ()
    fp32_in_fp16: tuple[str, ...] = ()
    linears: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadingOracle:
    """Asks transformers about a checkpoint."""

    checkpoint: Checkpoint

    def ask(self, generation: Any = None) -> LoadReport:
        """Return what transformers would report. generation: the contents of generation_config.json.

        Raises MissingExtra without transformers or a library that it needs, UnknownArchitecture for a class that it does not have,
        LimitExceeded, InvalidCheckpoint.
        """
        if find_spec("transformers") is None or find_spec("torch") is None:
            raise MissingExtra("transformers is not installed: pip install 'mantissa[models]'.")
        tensors = [(tensor.name, tensor.shape) for tensor in loaded_tensors(self.checkpoint)]

        def load() -> LoadReport:
            from analyzers.language_models import loading

            return LoadReport(**loading.load(cast(Any, self.checkpoint.config), tensors, generation))

        return limited_call("Building its model", load, limits.LOADING_MEMORY, limits.LOADING_SECONDS, _libraries, _NOT_NEEDED)


def _libraries() -> None:
    import analyzers.language_models.loading  # noqa: F401


def kept_in_fp32(loading: LoadReport | None) -> frozenset[str]:
    """Return the stored tensors that transformers keeps in fp32, if not always then when fp16 is asked for."""
    return frozenset() if loading is None else frozenset({*loading.fp32, *loading.fp32_in_fp16})


def loaded_tensors(checkpoint: Checkpoint) -> list[Tensor]:
    """List the tensors except those of other components, whose names begin with a folder."""
    return [tensor for tensor in (*checkpoint.tensors, *checkpoint.aliases) if "/" not in tensor.name]
