"""The tensors of a checkpoint that dtype detection looks at, and how much of each dtype there is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from analyzers.checkpoints import Checkpoint, Tensor, select
from analyzers.checkpoints.names import INTEGER_DTYPES
from analyzers.checkpoints.quantization import describe_quantization, storage_note
from analyzers.dtype_detection.report import DtypeRequest, Storage
from analyzers.errors import NoWeights, UnsupportedWeights


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tensors looked at: parameters that pass the filters, those of them that have float values, scales, and buffers."""

    parameters: list[Tensor]
    floats: list[Tensor]
    scales: list[Tensor]
    buffers: list[Tensor]

    @classmethod
    def of(cls, checkpoint: Checkpoint, request: DtypeRequest) -> Self:
        """Those of ``checkpoint``. Raises UnsupportedWeights where its weights are integers, NoWeights where there are no values."""
        tensors = select(checkpoint.tensors, request.include, request.exclude)
        parameters = [t for t in tensors if not t.buffer and not t.holds_scales]
        floats = [t for t in parameters if t.has_values]
        method = checkpoint.quantization
        if method is not None and not request.include and _of_integers(method, parameters):
            raise UnsupportedWeights(
                f"{checkpoint.ref} holds {describe_quantization(method, checkpoint.config)}. The bits of integers say nothing about "
                "training: inspect the original model, or choose the tensors that are still floats with an include filter (for example: "
                "embed|norm)."
            )
        if not parameters:
            raise NoWeights(f"{checkpoint.ref} holds no parameters: " + ("only buffers." if tensors else "its files have no tensors."))
        if not any(t.elements for t in parameters):
            which = "its only tensor is" if len(parameters) == 1 else f"all of its {len(parameters):,} tensors are"
            raise NoWeights(f"{checkpoint.ref} holds no values: {which} empty.")
        if not any(t.elements for t in floats):
            kinds = ", ".join(sorted({t.dtype for t in parameters if t.elements}))
            raise UnsupportedWeights(f"{checkpoint.ref} holds no float values to look at: its parameters are {kinds}.")
        return cls(parameters, floats, [t for t in tensors if t.holds_scales], [t for t in tensors if t.buffer])


def _of_integers(method: str, parameters: Sequence[Tensor]) -> bool:
    """Whether a method of quantization left integers without values; where nothing but a dtype tells of one, whether most are such."""
    if method in ("fp8", "mxfp4"):
        return False
    integers = sum(t.elements for t in parameters if not t.has_values and t.dtype in INTEGER_DTYPES)
    return integers > (sum(t.elements for t in parameters) // 2 if method == "integer" else 0)


def storage_rows(chosen: Chosen) -> tuple[Storage, ...]:
    """A row for each dtype, the largest first."""
    by_dtype: dict[str, list[Tensor]] = {}
    for tensor in (*chosen.parameters, *chosen.scales):
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    rows = [
        Storage(
            dtype=dtype,
            tensors=len(each),
            parameters=sum(t.elements for t in each if not t.holds_scales),
            bytes=sum(t.nbytes for t in each),
            note=storage_note(each),
        )
        for dtype, each in by_dtype.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes))
