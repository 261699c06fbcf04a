"""The rules `loads` and `empty`: what transformers reports when it loads the checkpoint, or what names and shapes tell without it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from analyzers.check.loads_files import another_format, find_missing_files, generation_settings
from analyzers.check.report import Finding
from analyzers.check.words import WORDS, finding
from analyzers.checkpoints import Checkpoint, Tensor, quoted
from analyzers.core.errors import MantissaError
from analyzers.core.notes import Note
from analyzers.language_models.load_report import LoadingOracle, LoadReport, loaded_tensors


def applies(checkpoint: Checkpoint) -> bool:
    """Return whether transformers can judge the checkpoint.

    It must hold the weights of one model beside a configuration that names it, and be neither an adapter nor GGUF.
    """
    config = checkpoint.config or {}
    named = "model_type" in config or "architectures" in config
    return named and not another_format(checkpoint) and bool(loaded_tensors(checkpoint))


def judge(checkpoint: Checkpoint, oracle: LoadingOracle | None, notes: list[Note]) -> tuple[LoadReport | None, list[Finding]]:
    """Ask transformers how it loads the checkpoint, and turn the answer into findings.

    oracle: None if transformers cannot judge the checkpoint; notes: receives what was not judged, and why. Returns transformers' report,
    None if there is none, and the findings. Of quantized weights the report only describes the model.
    """
    found, why = find_missing_files(checkpoint)
    loading = None
    if oracle is not None:
        try:
            loading = oracle.ask(generation_settings(checkpoint))
        except MantissaError as error:
            why = str(error)
    settings = (checkpoint.config or {}).get("quantization_config")
    if loading is not None and not loading.quantized and not loading.by_config and isinstance(settings, dict) and checkpoint.quantization:
        loading = replace(loading, quantized=str(settings.get("quant_method")))  # a method that transformers does not know
    if loading is not None and loading.quantized:
        why = f"config.json says that the weights are quantized ({quoted(loading.quantized, 60)})."
    if why:
        notes.append(WORDS.note("loading-not-judged", why=why))
    tensors = loaded_tensors(checkpoint) if oracle is not None else checkpoint.tensors
    if loading is None or loading.quantized:
        return loading, [*found, *(empty(tensors) if checkpoint.quantization is None else [])]
    config = checkpoint.config or {}
    if loading.instead:
        notes.append(WORDS.note("class-instead", named=loading.instead, model=loading.model))
    attention = config.get("attn_implementation") or config.get("_attn_implementation")
    if attention not in (None, "eager", "sdpa") and not loading.fault:
        why = f"config.json asks for the attention {quoted(str(attention), 60)}, which may take another library, and was not tried."
        notes.append(WORDS.note("loading-not-judged", why=why))
    coded = [tensor.name for tensor in tensors if tensor.stored is not None]
    if coded and not isinstance(settings, dict):
        found.append(finding("loads", "error", "quantization-not-stated", coded))
    return loading, [*found, *loads(tensors, loading)]


def loads(tensors: Sequence[Tensor], loading: LoadReport) -> Iterator[Finding]:
    """Turn the report of transformers' loader into findings."""
    if loading.refused:
        code = "config-refused" if loading.by_config else "refused-by-transformers"
        yield finding("loads", "error", code, model=loading.model, why=loading.refused)
        yield from empty(tensors)
        return
    if loading.fault:
        yield finding("loads", "error", "config-refused", why=loading.fault)
    missing, buffers = loading.missing, loading.buffers
    if missing or buffers:
        values: dict[str, Any] = {"model": loading.model, "parameters": len(missing), "buffers": len(buffers)}
        yield finding("loads", "error", "weights-missing", [*missing, *buffers], **values)
    without = [name for name, stored, _ in loading.mismatched if 0 in stored]
    if without:
        yield finding("empty", "error", "tensors-without-values", without, empty=len(without), tensors=len(tensors))
    others = [each for each in loading.mismatched if 0 not in each[1]]
    if others:
        _, *shapes = others[0]
        stored, expected = (tuple(map(str, shape)) for shape in shapes)
        values = {"model": loading.model, "shape": stored, "expected": expected}
        yield finding("loads", "error", "shapes-differ-from-the-model", [each[0] for each in others], **values)
    if loading.unexpected:
        yield finding("loads", "warning", "weights-ignored", loading.unexpected, model=loading.model)


def empty(tensors: Sequence[Tensor]) -> Iterator[Finding]:
    """Find parameters without values if no expected shape is known: of the shape (0,), since a few architectures have empty matrices."""
    names = [tensor.name for tensor in tensors if tensor.shape == (0,) and not tensor.buffer]
    if names:
        yield finding("empty", "error", "tensors-without-values", names, empty=len(names), tensors=len(tensors))
