"""Provides one function for each question, and `stream` for all of them. Each imports its dependencies when it is called."""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from analyzers import ANALYZERS
from analyzers.core.errors import InvalidReference, InvalidRequest
from analyzers.core.extras import extras_explained
from analyzers.core.pasted_text import on_hub
from analyzers.core.progress_bar import drawn
from analyzers.core.request import PASTED, request_error
from analyzers.core.untrusted_json import parse_json, parse_model

if TYPE_CHECKING:
    from torch import Tensor, nn

    from analyzers.check import CheckReport
    from analyzers.checkpoints import Repository
    from analyzers.comparison.compare import CompareReport
    from analyzers.comparison.parents import ParentsReport
    from analyzers.comparison.sparsity import SparsityReport
    from analyzers.conflict import ConflictReport
    from analyzers.core.report import Report
    from analyzers.core.request import Progress
    from analyzers.dtype import DtypeReport
    from analyzers.exit import ExitReport
    from analyzers.precision import PrecisionReport
    from analyzers.write.report import MergeReport, MergeTo, ShrinkReport, ShrinkTo

    Reference = str | os.PathLike[str]
    Weights = Reference | nn.Module | Mapping[str, Tensor]
    Model = Reference | nn.Module
    Loss = Callable[[nn.Module, Any], Tensor] | str

# Held while a model is run: loading one sets torch's default dtype and random state, which belong to the whole process.
_RUNNING = threading.RLock()


def dtype(model: "Weights", *, progress: bool = False, token: str | bool = True, **options: Any) -> "DtypeReport":
    """Determine which formats the weights are stored in, have passed through, and fit.

    model: ``org/name`` (with ``@revision``), ``sample:NAME``, a path, a module of torch, or a state dict.
    options: fields of `analyzers.dtype.DtypeRequest`: mode ("quick" reads a sample, "exact" everything), budget (bytes),
    include and exclude (regular expressions on names), subfolder, seed, device.
    progress: draw a bar. token: for the Hub; True for the one this machine is logged in with, False for none.
    Raises `analyzers.core.errors.MantissaError`, one sentence.
    """
    report: DtypeReport = _last(stream("dtype", token=token, model=model, **options), "dtype", progress)
    return report


def sparsity(base: "Weights", *tuned: "Weights", progress: bool = False, token: str | bool = True, **options: Any) -> "SparsityReport":
    """Measure what a fine-tune changed at bf16 resolution: shares, places and sizes of updates.

    base, tuned: like the model of `dtype`; several tuned checkpoints are a trajectory. options: fields of
    `SparsityRequest`: eta (relative threshold of the probe), spectral, and those of `dtype`. Other parameters and
    errors as in `dtype`.
    """
    report: SparsityReport = _last(stream("sparsity", token=token, base=base, tuned=tuned, **options), "sparsity", progress)
    return report


def parents(model: "Weights", *candidates: "Weights", progress: bool = False, token: str | bool = True, **options: Any) -> "ParentsReport":
    """Determine the models that the weights come from: a copy, a fine-tune, a merge (in which proportions), or none of the candidates.

    model, candidates: like the model of `dtype`; by default the candidates that the model card names. options: fields of
    `ParentsRequest`, those of `dtype`. Other parameters and errors as in `dtype`.
    """
    report: ParentsReport = _last(stream("parents", token=token, model=model, candidates=candidates, **options), "parents", progress)
    return report


def compare(*models: "Weights", progress: bool = False, token: str | bool = True, **options: Any) -> "CompareReport":
    """Determine what models are to each other: the same weights, a fine-tune, a merge, a stack of layers, or unrelated; and what changed.

    models: each like the model of `dtype`, a base first; the report contains those of `parents` and `sparsity`. One alone is compared with
    the models that its card names. options: fields of `CompareRequest`, those of `sparsity`. Other parameters and errors
    as in `dtype`.
    """
    report: CompareReport = _last(stream("compare", token=token, models=models, **options), "compare", progress)
    return report


def check(model: "Weights", base: "Weights | None" = None, *, progress: bool = False, token: str | bool = True) -> "CheckReport":
    """Check whether an upload is what it claims to be, and what it wastes: findings, each with its level and advice.

    model: as in `dtype`; base: the checkpoint that it was trained from, to compare with. Both are read entirely. Other parameters and
    errors as in `dtype`.
    """
    report: CheckReport = _last(stream("check", token=token, model=model, base=base), "check", progress)
    return report


def shrink(
    model: "Reference", out: "str | os.PathLike[str]", *, to: "ShrinkTo" = "auto", progress: bool = False, token: str | bool = True
) -> "ShrinkReport":
    """Store a checkpoint in the new folder ``out`` in fewer bytes without changing a value, proven by reading it back.

    model: ``org/name`` (with ``@revision``), ``sample:NAME`` or a path. to: consider only this format. Other parameters and errors as in
    `dtype`.
    """
    with extras_explained():
        from analyzers.checkpoints import Access
        from analyzers.write.shrink import shrink

        access = Access(token=token or None, local=True)
        report: ShrinkReport = _last(shrink(_stored("shrink", model), os.fspath(out), to, access), "shrink", progress)
    return report


def merge(
    model: "Reference", out: "str | os.PathLike[str]", *, to: "MergeTo" = "fp32", progress: bool = False, token: str | bool = True
) -> "MergeReport":
    """Write a base with an adapter merged in, ``BASE+ADAPTER``, into the new folder ``out``.

    to: dtype of the stored weights, which are computed in fp32 and rounded once. Other parameters and errors as in `shrink`.
    """
    with extras_explained():
        from analyzers.checkpoints import Access
        from analyzers.write.merge import merge

        access = Access(token=token or None, local=True)
        report: MergeReport = _last(merge(_stored("merge", model), os.fspath(out), to, access), "merge", progress)
    return report


def conflict(
    model: "Model",
    *,
    tokenizer: Any = None,
    batches: "Iterable[Any] | None" = None,
    loss: "Loss | None" = None,
    progress: bool = False,
    token: str | bool = True,
    **options: Any,
) -> "ConflictReport":
    """Measure whether samples pull the same neuron in opposite directions, and whether one of them dominates.

    model: a reference or a path, or a causal language model of transformers with its ``tokenizer`` or with ``token_ids``. It is not
    changed: a copy of its structure, which shares its weights where they are float32, runs in evaluation mode.
    options: fields of `analyzers.conflict.ConflictRequest`: samples, data, token_ids (ids per sample, in lists, a
    tensor or an array) with answer_starts, ffn ("topk"), topk, gamma, ... loss: "mean" or "sum" over a sample's answer tokens.

    batches: inputs of ``loss(model, batch)``, which returns a scalar tensor; the gradient of each batch is then one sample. Without a loss,
    batches are mappings and ``model(**batch).loss`` is differentiated. The model itself runs, in evaluation mode; its state and torch's
    random state are restored afterwards. Only the options gamma, weights and seed apply. Exceptions of the loss are not translated. Other
    parameters and errors as in `dtype`.
    """
    asked = stream("conflict", token=token, tokenizer=tokenizer, model=model, batches=batches, loss=loss, **options)
    report: ConflictReport = _last(asked, "conflict", progress)
    return report


def precision(
    model: "Model", *, tokenizer: Any = None, progress: bool = False, token: str | bool = True, **options: Any
) -> "PrecisionReport":
    """Measure how rounding error grows through the layers, forward and backward, for each way of running the model.

    model, tokenizer: as in `conflict`. options: fields of `analyzers.precision.PrecisionRequest`: variants, data, text, token_ids
    (equally long rows), sequences, sequence_length, loss, ... logprobs: what an engine gave its tokens, as the path of a file of JSON lines
    or as a list of answers of vLLM or OpenAI's API or of {"token_ids": [...], "logprobs": [...]}; the report's ``engine`` tells whether
    bf16 rounding explains them. Other parameters and errors as in `dtype`.
    """
    report: PrecisionReport = _last(stream("precision", token=token, tokenizer=tokenizer, model=model, **options), "precision", progress)
    return report


def exit(model: "Model", *, tokenizer: Any = None, progress: bool = False, token: str | bool = True, **options: Any) -> "ExitReport":
    """Measure how close gradients without backpropagation at the LM head come to the exact gradient.

    model, tokenizer: as in `conflict`. options: fields of `analyzers.exit.ExitRequest`: methods, rank, k, anchors, seeds, data,
    token_ids with answer_starts (without training, which needs a tokenizer), ... Other parameters and errors as in `dtype`.
    """
    report: ExitReport = _last(stream("exit", token=token, tokenizer=tokenizer, model=model, **options), "exit", progress)
    return report


def stream(question: str, *, tokenizer: Any = None, token: str | bool = True, **fields: Any) -> "Iterator[Progress | Report]":
    """Return the generator of a question, "dtype" for example: `Progress` while it works, and last the report. Closing it cancels the work.

    fields: of the question's request, by name, with the models among them: ``stream("sparsity", base="org/a", tuned=("org/b",))``; of
    "conflict" also batches. Other parameters, models and errors as in the function of that name.
    """
    if question not in ANALYZERS:
        raise InvalidRequest(f"Mantissa has no question {question[:60]!r}: ask one of {', '.join(ANALYZERS)}.")
    batches, fields = fields.pop("batches", None), {name: value for name, value in fields.items() if value is not None}
    with extras_explained():
        if batches is not None:
            items = _of_batches(fields.pop("model"), batches, fields.pop("loss", None), fields)
        else:
            request, access = _asked(question, _prepared(question, fields), token, tokenizer)
            items = iter(ANALYZERS[question].load().analyze(request, access))
    return _in_turn(items) if ANALYZERS[question].runs_model else _explained(items)


def read_report(source: "str | bytes | os.PathLike[str]") -> "Report":
    """Read a report from its JSON (``report.model_dump_json()``, ``--json``, the page's download), given as text or as the path of a file.

    Raises InvalidRequest for anything but a report, and for one of another version of Mantissa.
    """
    try:
        text = Path(source).read_bytes() if isinstance(source, os.PathLike) else source
        content = parse_json(text)
    except OSError as error:
        raise InvalidRequest(f"The report cannot be read: {error.strerror or 'the system refuses it'}.") from None
    except ValueError as error:
        raise InvalidRequest(f"This is not a report: it {error}.") from None
    name = content.get("analyzer") if isinstance(content, dict) else None
    if not isinstance(name, str) or name not in ANALYZERS:
        raise InvalidRequest("This is not a report: its JSON names no analyzer of Mantissa.")
    with extras_explained():
        kind = ANALYZERS[name].report_model()
    try:
        report: Report = parse_model(kind, text)
        fits = content.get("schema_version") == kind.model_fields["schema_version"].default
    except ValidationError:
        fits = False
    if not fits:
        raise InvalidRequest(f"This {name} report is of another version of Mantissa: ask the question again.")
    return report


def _last(items: Iterator[Any], name: str, progress: bool) -> Any:
    """Return the last of ``items``, the report. progress: draw a bar."""
    if progress:
        from tqdm.auto import tqdm  # a widget in a notebook with ipywidgets

        items = drawn(items, name, tqdm)
    with extras_explained(), closing(items):  # type: ignore[type-var]
        *_, report = items
    return report


def _explained(items: Iterator[Any]) -> Iterator[Any]:
    with extras_explained(), closing(items):  # type: ignore[type-var]
        yield from items


def _in_turn(items: Iterator[Any]) -> Iterator[Any]:
    """Yield ``items``, each computed while no other model runs; not held in between, since another thread may ask for the next one."""
    try:
        while True:
            with _RUNNING, extras_explained():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item
    finally:
        with _RUNNING:
            items.close()  # type: ignore[attr-defined]


def _prepared(question: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with token ids as lists, as many samples as these have, and what an engine gave read from its file."""

    def listed(given: Any) -> Any:
        if hasattr(given, "tolist"):
            return given.tolist()
        return [listed(each) for each in given] if isinstance(given, list | tuple) else given

    prepared = {**fields} | {name: listed(fields[name]) for name in ("token_ids", "answer_starts") if name in fields}
    prepared |= {"logprobs": _logprobs(fields["logprobs"])} if question == "precision" and "logprobs" in fields else {}
    rows = prepared.get("token_ids")
    if not isinstance(rows, list) or not rows:
        return prepared
    if question != "precision":
        return {"samples": max(2 if question == "conflict" else 1, len(rows))} | prepared
    return ({"sequences": len(rows), "sequence_length": len(rows[0])} if isinstance(rows[0], list) else {}) | prepared


def _logprobs(given: Any) -> Any:
    """Read a file; leave a list of answers to the request."""
    if not isinstance(given, str | os.PathLike):
        return tuple(given)
    from analyzers.precision.logprobs import read_logprobs

    return read_logprobs(os.fspath(given))


def _of_batches(model: Any, batches: Iterable[Any], loss: Any, options: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(model, str | os.PathLike | Mapping):
        raise InvalidRequest("Batches run through a module of torch: pass the model itself, not a reference or a state dict.")
    if not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
        raise InvalidRequest(f"batches must be iterable, such as a list or a DataLoader, not of the type {type(batches).__name__}.")
    if loss is not None and not callable(loss):
        raise InvalidRequest("With batches, loss is a function of model and batch that returns a scalar tensor.")
    request, access = _asked("conflict", {"model": model, **options}, False, None)
    from analyzers.conflict.caller_batches import analyze_batches
    from mantissa.models_in_memory import unwrapped

    return analyze_batches(request, unwrapped(model), batches, loss, access)


def _asked(analyzer: str, fields: Mapping[str, Any], token: str | bool, tokenizer: Any) -> Any:
    """Build the request, and what it may read."""
    from analyzers.checkpoints import Access, Repository

    kind = ANALYZERS[analyzer].request_model()
    if callable(fields.get("loss")):
        raise InvalidRequest("A loss of your own runs on batches of your own: pass batches=, what it takes.")
    memory: dict[str, Repository] = {}
    models = [name for name in fields if name in kind.model_fields and PASTED in kind.model_fields[name].metadata]
    named = {name: _named(fields[name], memory, tokenizer) for name in models}
    try:
        request = kind(**{**fields} | named)
    except ValidationError as error:
        raise request_error(error) from None
    return request, Access(token=token or None, local=True, memory=memory)


def _stored(question: str, model: Any) -> Any:
    memory: dict[str, Any] = {}
    named = _named(model, memory, None)
    if memory:
        raise InvalidRequest(f"{question} reads a checkpoint by its reference or path: save the model first.")
    return named


def _named(model: Any, memory: "dict[str, Repository]", tokenizer: Any) -> Any:
    """Return the reference of ``model`` in a request; a model in memory is registered under its name."""
    if isinstance(model, tuple):
        return tuple(_named(each, memory, tokenizer) for each in model)
    if isinstance(model, str | os.PathLike):
        return on_hub(model) if isinstance(model, str) else str(Path(model).absolute())
    if not isinstance(model, Mapping) and not ("torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module)):
        raise InvalidReference(
            f"A model is a reference, a path, a module of torch or a state dict, not of the type {type(model).__name__}."
        )
    from mantissa.models_in_memory import in_memory, unwrapped

    name = "state-dict" if isinstance(model, Mapping) else type(unwrapped(model)).__name__
    repository = in_memory(f"{name}-{len(memory) + 1}" if f"memory:{name}" in memory else name, model, tokenizer)
    memory[repository.ref] = repository
    return repository.ref
