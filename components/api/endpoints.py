"""The endpoints for programs: the same analyses, within the same limits, as plain data."""

import json
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from gradio.events import api

from analyzers import limits
from analyzers.base import Progress
from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.signals import TopkBy
from analyzers.update_sparsity.report import DEFAULT_ETA
from components.api.answers import json_over_mcp, one_sentence
from components.api.arguments import flag_of, list_of, number_of, text_of
from components.conflict import form as gradients
from components.conflict.pairs import lines
from components.exit import form as signals
from components.forms.links import Reading
from components.passport import form as passport
from components.precision import form as rounding
from components.precision.names import DEFAULT
from components.running.jobs import job, sentence
from components.running.queue_limits import MODELS, READING
from components.sparsity import form as pair

ONE = (
    "The precision passport of a checkpoint as JSON: how it is stored, which formats its values provably passed through, in which "
    "precision it was probably trained, and whether its weights fit fp16. "
    'Yields progress ({"done", "total", "unit", "note"}); the last item is the report.'
)
MANY = (
    f"The passports of up to {limits.MODELS} checkpoints, read one after the other. Yields progress; the last item is a list in the order "
    'of the ids, each of them once: a report, or {"model", "error"} with the sentence that says why there is none.'
)
PAIR = (
    f"What changed from a base checkpoint to a tuned one, or to each of up to {limits.TRAJECTORY} in the order of the training, as JSON: "
    "the share of weights that are in bf16 what they were, by layer, role and tensor, how large the updates are, and what could not be "
    "compared. Yields progress; the last item is the report."
)
CONFLICT = (
    "How often training samples pull the same neuron of a model in opposite directions, as JSON: conflict rates by layer and block with "
    "intervals, cosines between samples, dominance, batch sizes, activation, the most and least conflicted neurons, and on request a "
    'comparison with a top-k FFN. data: "builtin" or the id of a Hub dataset, from which samples are chosen at random by seed, or the '
    'first; pairs: given instead, a list of {"instruction", "output"} and optionally "input"; template: how they become a prompt. '
    "Yields progress; the last item is the report."
)
VARIANTS = (
    "How rounding error grows through a model, forward and backward, in each of several variants compared with fp32, as JSON: the error of "
    "hidden states, logits, gradients and log-probabilities by layer, fp16 headroom, and the first layer to overflow. variants: presets "
    'or texts such as "mine: dtype=bf16, fp32=residual"; data: "builtin", "random" tokens or the id of a Hub dataset; text: your own text '
    "instead. For the losses gspo and grpo: advantages, one per sequence; old_logprobs, per sequence a list with the log-probability of "
    "each token but the first under the sampling policy (by default the reference's); clip_low and clip_high, the clip range below and "
    "above 1. Yields progress; the last item is the report."
)
SIGNALS = (
    "How close gradients without backpropagation at the LM head are to the exact one, as JSON: for each signal the cosine per token "
    "with percentiles and by loss, norm ratio, best scale, energy along the hidden state before and after the final norm, over ranks, "
    "k, anchors, seeds and layers, time and memory, and training curves of a small transformer. methods: names of signals, all by default; "
    'residual: lambda of parallel_gold and parallel_topmass; data: "builtin" or the id of a Hub dataset. Yields progress; the last item is '
    "the report."
)
# A few progress items a second are plenty for a program too.
_EVERY_SECONDS = 0.25


def inspect(
    model: str = "",
    mode: Literal["quick", "exact"] = "quick",
    budget: str = "",
    include: str = "",
    exclude: str = "",
    subfolder: str = "",
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Inspect a Hub model (org/name, optionally @revision) or a sample (sample:NAME); see `ONE`."""
    with one_sentence():
        reading = _reading(mode=mode, budget=budget, include=include, exclude=exclude, subfolder=subfolder, seed=seed)
        yield from _answer(passport.Form(text_of("model", model), reading).request())


def inspect_many(
    models: list[str] | None = None,
    mode: Literal["quick", "exact"] = "quick",
    budget: str = "",
    include: str = "",
    exclude: str = "",
    subfolder: str = "",
    seed: int = 0,
) -> Iterator[Any]:
    """Inspect several models with the same options; see `MANY`."""
    started = time.monotonic()
    with one_sentence():
        reading = _reading(mode=mode, budget=budget, include=include, exclude=exclude, subfolder=subfolder, seed=seed)
        asked = passport.Form(", ".join(_ids("models", models)), reading).requests()
    found: list[dict[str, Any]] = []
    for number, request in enumerate(asked, 1):
        try:
            for item in paced(job(request, started)):
                said = item.model_dump(mode="json")
                if isinstance(item, Progress):
                    yield said | {"note": f"{number} of {len(asked)}, {request.model}: {item.note}"}
                else:
                    found.append(said)
        except Exception as error:
            found.append({"model": request.model, "error": sentence(error)})
    yield found


def sparsity(
    base: str = "",
    tuned: list[str] | None = None,
    mode: Literal["quick", "exact"] = "quick",
    budget: str = "",
    include: str = "",
    exclude: str = "",
    subfolder: str = "",
    seed: int = 0,
    eta: float = DEFAULT_ETA,
    spectral: bool = False,
) -> Iterator[dict[str, Any]]:
    """Compare a base checkpoint with those tuned from it; see `PAIR`."""
    with one_sentence():
        reading = _reading(mode=mode, budget=budget, include=include, exclude=exclude, subfolder=subfolder, seed=seed)
        probe = number_of("eta", eta, fractions=True)
        asked = pair.Form(text_of("base", base), _ids("tuned", tuned), reading, probe, flag_of("spectral", spectral, False))
        yield from _answer(asked.request())


def conflict(
    model: str = "",
    data: str = gradients.BUILTIN,
    pairs: list[dict[str, Any]] | None = None,
    samples: int = 50,
    max_length: int = 512,
    unit: Literal["ffn", "attention"] = "ffn",
    ffn: Literal["original", "topk"] = "original",
    topk: float = 0.125,
    topk_share: float | None = None,
    topk_layers: str = "last",
    select: Literal["gate", "up", "abs-up", "product", "abs-product"] = "gate",
    loss: Literal["mean", "sum"] = "mean",
    gamma: float = 0.0,
    floor: float = 0.0,
    epsilon: float = 0.0,
    weights: bool = True,
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    attention: Literal["sdpa", "eager"] = "sdpa",
    checkpointing: bool = False,
    seed: int = 0,
    choice: Literal["random", "first"] = "random",
    template: Literal["auto", "plain", "alpaca", "alpaca-input", "chat"] = "auto",
) -> Iterator[dict[str, Any]]:
    """Measure gradient conflict between samples in a model; see `CONFLICT`."""
    with one_sentence():
        texts = {"model": model, "choice": choice, "template": template, "unit": unit, "ffn": ffn, "topk_layers": topk_layers}
        texts |= {"select": select, "loss": loss, "dtype": dtype}
        counts = {"samples": samples, "max_length": max_length, "seed": seed}
        fractions = {"topk": topk, "topk_share": topk_share, "gamma": gamma, "floor": floor, "epsilon": epsilon}
        asked: dict[str, Any] = {name: text_of(name, value) for name, value in (texts | {"attention": attention}).items()}
        asked |= {name: number_of(name, value) for name, value in counts.items()}
        asked |= {name: number_of(name, value, fractions=True) for name, value in fractions.items()}
        asked |= {"weights": flag_of("weights", weights, True), "checkpointing": flag_of("checkpointing", checkpointing, False)}
        yield from _answer(gradients.Form(**asked | _samples(data, pairs)).request())


def precision(
    model: str = "",
    variants: list[str] | None = None,
    data: str = rounding.BUILTIN,
    text: str | None = None,
    sequences: int = 2,
    sequence_length: int = 512,
    loss: Literal["ce", "gspo", "grpo"] = "ce",
    advantages: list[float] | None = None,
    old_logprobs: list[list[float]] | None = None,
    clip_low: float | None = None,
    clip_high: float | None = None,
    random_init: bool = False,
    pre_rounded: bool = False,
    inside: bool = False,
    attention: Literal["sdpa", "eager"] = "sdpa",
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Run a model in several precisions and compare each with fp32; see `VARIANTS`."""
    with one_sentence():
        asked: dict[str, Any] = {
            "model": text_of("model", model),
            "loss": text_of("loss", loss),
            "attention": text_of("attention", attention),
        }
        counts = {"sequences": sequences, "sequence_length": sequence_length, "seed": seed}
        asked |= {name: number_of(name, value) for name, value in counts.items()}
        flags = {"pre_rounded": pre_rounded, "inside": inside}
        asked |= {name: flag_of(name, value, False) for name, value in flags.items()}
        asked |= {"weights": rounding.RANDOM} if flag_of("random_init", random_init, False) else {}
        clip = {"clip_low": clip_low, "clip_high": clip_high}
        asked |= {name: number_of(name, value, fractions=True) for name, value in clip.items()}
        asked |= {"old_logprobs": "\n".join(json.dumps(list_of("old_logprobs", row)) for row in list_of("old_logprobs", old_logprobs))}
        asked |= {"advantages": ",".join(number_of("advantages", each, fractions=True) for each in list_of("advantages", advantages))}
        asked |= _ways(variants) | _run_on(data, text)
        yield from _answer(rounding.Form(**asked).request())


def exit(
    model: str = "",
    methods: list[str] | None = None,
    data: str = signals.BUILTIN,
    rank: int | None = None,
    k: int | None = None,
    anchors: int | None = None,
    rank_exact: int | None = None,
    rank_tail: int | None = None,
    topk_by: TopkBy = "value",
    alpha: float = 1.0,
    residual: float = 0.1,
    mass_threshold: float = 0.95,
    seeds: int = 8,
    sweep: bool = True,
    layers: str = "auto",
    training_steps: int = 80,
    samples: int = 32,
    sequence_length: int = 256,
    tokens: int = 512,
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Measure signals without backpropagation against the exact gradient at a model's head; see `SIGNALS`."""
    with one_sentence():
        texts = {"model": model, "layers": layers, "topk_by": topk_by, "dtype": dtype}
        asked: dict[str, Any] = {name: text_of(name, value) for name, value in texts.items()}
        counts = {"rank": rank, "k": k, "anchors": anchors, "rank_exact": rank_exact, "rank_tail": rank_tail, "seeds": seeds}
        counts |= {"training_steps": training_steps, "samples": samples, "sequence_length": sequence_length, "tokens": tokens, "seed": seed}
        asked |= {name: number_of(name, value) for name, value in counts.items()}
        fractions = {"alpha": alpha, "residual": residual, "mass_threshold": mass_threshold}
        asked |= {name: number_of(name, value, fractions=True) for name, value in fractions.items()}
        asked |= {"sweep": flag_of("sweep", sweep, True)}
        if methods is not None:
            asked["methods"] = tuple(text_of("a method", each) for each in list_of("methods", methods))
        named = text_of("data", data)
        asked |= {} if named in ("", signals.BUILTIN) else {"source": signals.DATASET, "dataset": named}
        yield from _answer(signals.Form(**asked).request())


def paced(items: Iterable[Any]) -> Iterator[Any]:
    """``items`` without progress less than a quarter of a second after the last; everything else passes."""
    last = float("-inf")
    for item in items:
        now = time.monotonic()
        if isinstance(item, Progress):
            if now - last < _EVERY_SECONDS:
                continue
            last = now
        yield item


def add_endpoints() -> None:
    """Register ``/inspect``, ``/inspect_many``, ``/sparsity``, ``/conflict``, ``/precision`` and ``/exit``. Call inside the Blocks."""
    endpoints = (
        (inspect, ONE, READING),
        (inspect_many, MANY, READING),
        (sparsity, PAIR, READING),
        (conflict, CONFLICT, MODELS),
        (precision, VARIANTS, MODELS),
        (exit, SIGNALS, MODELS),
    )
    for function, description, kind in endpoints:
        api(
            json_over_mcp(function),
            api_name=function.__name__,
            api_description=description,
            concurrency_limit=None,  # the job itself waits for its turn
            concurrency_id=kind.name,
            api_visibility="public",
        )


def _answer(request: Any) -> Iterator[dict[str, Any]]:
    for item in paced(job(request)):
        yield item.model_dump(mode="json")


def _ids(name: str, given: Any) -> list[str]:
    """References, each a text of its own; a text alone may hold several. Raises InvalidRequest."""
    if given is None:
        return []
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise InvalidRequest(f"{name} must be a list of model ids, each a text.")
    if (bad := next((each for each in given if not re.fullmatch(r"\s*[^\s,;]+\s*", each)), None)) is not None:
        raise InvalidRequest(f"{name} must hold one id in each text, not {json.dumps(bad[:60])}.")
    return given


def _reading(**fields: Any) -> Reading:
    """The fields as text, as the page's form has them; None is the default. Raises InvalidRequest for what can be no such field."""
    given = {name: number_of(name, value) if name in ("seed", "budget") else text_of(name, value) for name, value in fields.items()}
    return Reading(**{name: value for name, value in given.items() if fields[name] is not None})


def _samples(data: Any, pairs: Any) -> dict[str, str]:
    """The text as fields of the form. Raises InvalidRequest."""
    given = text_of("data", data)
    if pairs is None:
        return {} if given in ("", gradients.BUILTIN) else {"source": gradients.DATASET, "dataset": given}
    if not isinstance(pairs, list) or not all(isinstance(each, dict) for each in pairs):
        raise InvalidRequest("pairs must be a list of objects, each with an instruction and an output.")
    if given not in ("", gradients.BUILTIN):
        raise InvalidRequest("Give either pairs or the name of a dataset, not both.")
    return {"source": gradients.PAIRS, "pairs": lines(pairs)}


def _ways(variants: Any) -> dict[str, Any]:
    """The variants as fields of the form: presets, and those written out. Raises InvalidRequest."""
    texts = [text_of("a variant", each) for each in list_of("variants", variants)]
    if variants is None:
        return {"presets": DEFAULT}
    if (bad := next((each for each in texts if len(each.splitlines()) != 1), None)) is not None:
        raise InvalidRequest(f"variants must hold one variant in each text, not {json.dumps(bad[:60])}.")
    return {"presets": tuple(each for each in texts if ":" not in each), "own": "\n".join(each for each in texts if ":" in each)}


def _run_on(data: Any, text: Any) -> dict[str, str]:
    """The text as fields of the form. Raises InvalidRequest."""
    named = text_of("data", data) or rounding.BUILTIN
    if text is not None:
        if named != rounding.BUILTIN:
            raise InvalidRequest("Give either a text or the name of data, not both.")
        return {"source": rounding.TEXT, "text": text_of("text", text)}
    if named in (rounding.BUILTIN, rounding.RANDOM):
        return {"source": named}
    return {"source": rounding.DATASET, "dataset": named}
