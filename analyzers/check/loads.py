"""The rules `loads` and `empty`: what transformers reports when it loads the checkpoint, or what names and shapes tell without it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analyzers.check.loads_files import another_format, find_missing_files, generation_settings
from analyzers.check.loads_structure import compare_layers, compare_with_configuration
from analyzers.check.report import Finding
from analyzers.check.rules import finding
from analyzers.checkpoints import Checkpoint, Tensor, quoted
from analyzers.errors import MantissaError, UnsupportedWeights
from analyzers.formatting import listed, plural, share
from analyzers.language_models.load_report import LoadingOracle, LoadReport, loaded_tensors

_GATHER = "A sharded run saves this where its parameters were not gathered first: save it again with all of them."


def applies(checkpoint: Checkpoint) -> bool:
    """Return whether transformers can judge the checkpoint.

    It must hold the weights of one model beside a configuration that names it, and be neither an adapter nor GGUF.
    """
    config = checkpoint.config or {}
    named = "model_type" in config or "architectures" in config
    return named and not another_format(checkpoint) and bool(loaded_tensors(checkpoint))


def judge(
    checkpoint: Checkpoint, oracle: LoadingOracle | None, notes: list[str], unjudged: list[str]
) -> tuple[LoadReport | None, list[Finding]]:
    """Ask transformers how it loads the checkpoint, and turn the answer into findings.

    oracle: None if transformers cannot judge the checkpoint; notes: receives the class that was judged instead of the named one; unjudged:
    receives what was not judged, and why. Returns transformers' report, None if there is none, and the findings.
    """
    found, why = find_missing_files(checkpoint)
    if why:
        unjudged.append(f"Whether transformers would load it was not judged: {why}")
    if oracle is None:
        return None, [*found, *(empty(checkpoint.tensors) if checkpoint.quantization is None else [])]
    config, tensors = checkpoint.config or {}, loaded_tensors(checkpoint)
    try:
        loading = oracle.ask(generation_settings(checkpoint))
    except UnsupportedWeights as error:
        unjudged.append(f"Whether transformers would load it was not judged: {error}")
        return None, [*found, *(empty(tensors) if checkpoint.quantization is None else [])]
    except MantissaError as error:
        compared: list[str] = []
        found += empty(tensors)
        if checkpoint.quantization is None:
            found += [*compare_with_configuration(config, tensors, compared), *compare_layers(config, tensors, compared)]
        instead = f"Compared instead: {listed(compared)}; nothing else." if compared else "Nothing was compared instead."
        unjudged.append(f"What transformers would load was not judged: {error} {instead}")
        return None, found
    if loading.instead:
        notes.append(
            f"config.json names the class {quoted(loading.instead)}, which transformers does not have for this model_type: judged as "
            f"{loading.model}, which its AutoModel takes. No code of the repository was run."
        )
    attention = config.get("attn_implementation") or config.get("_attn_implementation")
    if attention not in (None, "eager", "sdpa") and not loading.fault:
        unjudged.append(f"config.json asks for the attention {quoted(str(attention))}, which was not tried: it may take another library.")
    found += loads(config, tensors, loading)
    if loading.by_config and checkpoint.quantization is None:  # as for a type newer than transformers
        found += [*compare_with_configuration(config, tensors, []), *compare_layers(config, tensors, [])]
    return loading, found


def loads(config: Mapping[str, Any], tensors: Sequence[Tensor], loading: LoadReport) -> Iterator[Finding]:
    """Turn the report of transformers' loader into findings."""
    model = loading.model
    if loading.by_config:
        detail = f"transformers cannot build a model from config.json: {quoted(loading.refused, 300)}. Correct config.json."
        yield finding("loads", "error", "It cannot be loaded", detail)
        yield from empty(tensors)
        return
    if loading.refused:
        detail = f"As {model}, transformers refuses it: {quoted(loading.refused, 300)} Save the model again with save_pretrained."
        yield finding("loads", "error", "It cannot be loaded", detail)
        yield from empty(tensors)
        return
    if loading.fault:
        yield finding("loads", "error", "It cannot be loaded", f"transformers refuses it: {quoted(loading.fault, 300)}. Correct it.")
    if loading.missing or loading.buffers:
        yield _missing(config, loading)
    without = [each for each in loading.mismatched if 0 in each[1]]
    if without:
        name, stored, expected = without[0]
        detail = (
            f"{len(without):,} of {plural(len(tensors), 'tensor')} hold no values, where {model} has weights; {quoted(name)} is "
            f"{list(stored)} and should be {list(expected)}, so transformers refuses to load it. {_GATHER}"
        )
        yield finding("empty", "error", "Tensors without values", detail, [each[0] for each in without])
    others = [each for each in loading.mismatched if 0 not in each[1]]
    if others:
        name, stored, expected = others[0]
        detail = (
            f"{plural(len(others), 'tensor has', 'tensors have')} another shape than in {model}, so transformers refuses to load it; "
            f"{quoted(name)} is {list(stored)} and should be {list(expected)}. Correct config.json, or save the model again."
        )
        yield finding("loads", "error", "Shapes that the architecture does not have", detail, [each[0] for each in others])
    if loading.unexpected:
        yield _unexpected(tensors, loading)


def empty(tensors: Sequence[Tensor]) -> Iterator[Finding]:
    """Find parameters without values if no expected shape is known: of the shape (0,), since a few architectures have empty matrices."""
    names = [tensor.name for tensor in tensors if tensor.shape == (0,) and not tensor.buffer]
    if names:
        detail = f"{len(names):,} of {plural(len(tensors), 'tensor')} hold no values. {_GATHER}"
        yield finding("empty", "error", "Tensors without values", detail, names)


def _missing(config: Mapping[str, Any], loading: LoadReport) -> Finding:
    said = []
    if loading.missing:
        said.append(
            f"{plural(len(loading.missing), 'parameter')} of {loading.model} without a stored tensor, nor tied to one: transformers "
            "initialises them at random."
        )
    if loading.buffers:
        said.append(f"{plural(len(loading.buffers), 'buffer')} of {loading.model} without a stored tensor: they keep their initial values.")
    untied = config.get("tie_word_embeddings") is False
    head = len(loading.missing) == 1 and "head" in loading.missing[0]
    if head and untied:
        said.append("config.json says that the head is not tied to the embedding (tie_word_embeddings): correct it, or save the head too.")
    else:
        said.append("Save the whole model again, or correct config.json.")
    return finding("loads", "error", "Weights are missing", " ".join(said), [*loading.missing, *loading.buffers])


def _unexpected(tensors: Sequence[Tensor], loading: LoadReport) -> Finding:
    ignored = _stored(loading.unexpected, tensors)
    elements, every = sum(tensor.elements for tensor in ignored), sum(tensor.elements for tensor in tensors)
    # Names are those after transformers' renaming, which need not lead back to the stored ones.
    known = len(ignored) == len(loading.unexpected)
    size = f" with {plural(elements, 'parameter')} ({share(elements / max(1, every))} of all)" if known else ""
    detail = f"{plural(len(loading.unexpected), 'stored tensor')}{size} without a place in {loading.model}: transformers ignores them."
    return finding("loads", "warning", "Weights that are ignored", detail, list(loading.unexpected))


def _stored(names: Sequence[str], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the stored tensors with these names, which may have gained or lost a prefix in loading."""
    by_name = {tensor.name: tensor for tensor in tensors}
    by_end = {tensor.name.partition(".")[2]: tensor for tensor in tensors}
    found = (by_name.get(name) or by_end.get(name) or by_name.get(name.partition(".")[2]) for name in names)
    return list({tensor.name: tensor for tensor in found if tensor is not None}.values())
