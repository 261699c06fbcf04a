"""Trials of the judgement on an engine's log-probabilities: clean engines in bf16, and engines with one injected fault each.

Engines are models of transformers. Each trial has another model, text and number of sequences.
"""

import math
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from analyzers.checkpoints import Access
from analyzers.language_models.load import OpenModel
from analyzers.language_models.samples import sample_folder
from analyzers.precision.casts import RunnableModel
from analyzers.precision.engine.compare import EngineComparison
from analyzers.precision.engine.measurements import Engine
from analyzers.precision.lockstep import Steps
from analyzers.precision.logprobs import sequences
from analyzers.precision.quantization import fake_quantized
from tests.precision.runs import result

SAMPLES = ("tiny-bf16", "tiny-fp32", "tiny-step-4", "tiny-fp16-mixed")
MODELS = (*SAMPLES, "untied", "random")
LENGTH = 96
FIRST = 3  # Ids below are special tokens.
ENOUGH = 500  # Tokens, in 8 sequences or more: with fewer a small fault may be left undecided.
_POOL = 128  # Sampled sequences, of which each trial draws some.


def _tokenizer(folder: Path) -> None:
    for file in sample_folder("tiny-bf16").glob("token*"):
        shutil.copy(file, folder)


def untied(folder: Path) -> None:
    """Save a sample with a head of its own."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_pretrained(sample_folder("tiny-fp32"))
    head = model.lm_head.weight.detach().clone()
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(head * (1 + 0.1 * torch.randn_like(head)))
    model.save_pretrained(folder)
    _tokenizer(folder)


_SIZES: dict[str, Any] = {"vocab_size": 512, "hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
_SIZES |= {"num_hidden_layers": 2, "intermediate_size": 64, "initializer_range": 0.2}


def random_weights(folder: Path) -> None:
    """Save a dense model with random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**_SIZES)).save_pretrained(folder)
    _tokenizer(folder)


def mixture(folder: Path) -> None:
    """Save a mixture of experts with random weights, whose routers are often nearly undecided."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    experts: dict[str, Any] = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 1}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**_SIZES, **experts)).save_pretrained(folder)
    _tokenizer(folder)


_BUILT = {"untied": untied, "random": random_weights, "mixture": mixture}


class Subject:
    """A model that is analyzed, and models of transformers that play the engine."""

    def __init__(self, name: str, opened: OpenModel, folder: Path) -> None:
        self.name, self.folder, self.opened = name, folder, opened

    @cached_property
    def runnable(self) -> RunnableModel:
        """The model that the analysis runs."""
        from analyzers.language_models.batch import Batch

        ids = torch.zeros(1, 2, dtype=torch.int64)
        self.opened.check(Batch(ids, ids, (2,)))
        for _ in self.opened.fetch():
            pass
        return RunnableModel(self.opened.load())

    @cache  # noqa: B019 - as long as the process
    def engine(
        self,
        dtype: torch.dtype = torch.bfloat16,
        attention: str = "sdpa",
        changed: Callable[[Tensor], Tensor] | None = None,
        folder: Path | None = None,
    ) -> Any:
        """The model as transformers loads it. changed: changes the matrices of the layers."""
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(folder or self.folder, dtype=dtype, attn_implementation=attention)
        for parameter in model.model.layers.parameters() if changed else ():
            if parameter.dim() == 2:
                parameter.data = changed(parameter.data.float()).to(dtype)  # type: ignore[misc]
        return model.eval().requires_grad_(False)

    @cache  # noqa: B019 - as long as the process
    def pool(self, sample: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Sequences (S, LENGTH) sampled from the model. sample: changes the logits."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(FIRST, 512, (_POOL, 1), generator=generator)
        model, cached = self.engine(torch.float32), None
        for _ in range(LENGTH - 1):
            scores, cached = decoded(model, ids[:, -1:], cached)
            scores = scores[:, -1].float()
            scores[:, :FIRST] = -torch.inf
            scores = scores if sample is None else sample(scores)
            ids = torch.cat([ids, torch.multinomial(torch.softmax(scores, -1), 1, generator=generator)], 1)
        return ids

    def judge(self, ids: Tensor, log_p: Tensor, ends: list[int]) -> Engine:
        """Judge an engine's log-probabilities (S, L - 1) of the tokens but the first, of sequences that end after so many tokens."""
        rows = [row[:end] for row, end in zip(ids.tolist(), ends, strict=True)]
        log_ps = [values[: end - 1] for values, end in zip(log_p.double().tolist(), ends, strict=True)]
        lines = [{"token_ids": row, "logprobs": values} for row, values in zip(rows, log_ps, strict=True)]
        engine = EngineComparison(sequences(enumerate(lines, 1)), tuple(map(tuple, rows)), self.opened, "sdpa", {})
        judged: Engine = result(engine.compare(self.runnable, Steps(10**6)))
        return judged


class Case:
    """A trial of one seed: the model, and the number and length of its sequences."""

    def __init__(self, name: str, subject: Subject, seed: int) -> None:
        self.subject = subject
        self.generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {seed}".encode()))
        self._lengths: list[int] = []

    def uniform(self, low: float, high: float) -> float:
        """Draw a number."""
        return low + (high - low) * float(torch.rand(1, generator=self.generator))

    def one_of(self, *values: Any) -> Any:
        """Draw a value."""
        return values[int(torch.randint(len(values), (1,), generator=self.generator))]

    def text(self, sample: Callable[[Tensor], Tensor] | None = None, most: int = 50, least: int = 1) -> Tensor:
        """Tokens (S, L) of sampled sequences. sample: changes the logits; most, least: sequences."""
        sequences = int(torch.randint(least, most + 1, (1,), generator=self.generator))
        pool = self.subject.pool(sample)
        whole = pool[torch.randperm(len(pool), generator=self.generator)[:sequences]]
        longest = int(torch.randint(32, LENGTH + 1, (1,), generator=self.generator))
        self._lengths = torch.randint(longest // 2, longest + 1, (sequences,), generator=self.generator).tolist()
        return whole[:, : max(self._lengths)]

    def judge(self, ids: Tensor, log_p: Tensor) -> Engine:
        """Judge log-probabilities (S, L - 1) of a text."""
        return self.subject.judge(ids, log_p, self._lengths)


def logits(model: Any, ids: Tensor, **options: Any) -> Tensor:
    """Logits (S, L - 1, V) that predict each token but the first."""
    result: Tensor = model(ids, use_cache=False, **options).logits[:, :-1]
    return result


def decoded(model: Any, ids: Tensor, cached: Any) -> tuple[Tensor, Any]:
    """Logits (S, L, V) after the tokens of a cache (None for none), and the cache with these tokens too."""
    with warnings.catch_warnings():  # the argument has another name in some of the supported versions
        warnings.simplefilter("ignore", FutureWarning)
        output = model(ids, past_key_values=cached, use_cache=True)
        return output.logits, output.past_key_values


def chosen(scores: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities (S, L - 1) of the tokens under logits, or under log-probabilities in the dtype of ``scores``."""
    return torch.log_softmax(scores, -1).gather(-1, ids[:, 1:, None]).squeeze(-1).float()


def kept(scores: Tensor, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0) -> Tensor:
    """The logits that top-p, top-k and min-p keep, by the processors of transformers."""
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    flat: Any = scores.reshape(-1, scores.shape[-1])
    flat = TopKLogitsWarper(top_k)(None, flat) if top_k else flat
    flat = TopPLogitsWarper(top_p)(None, flat) if top_p < 1 else flat
    smallest: Any = MinPLogitsWarper(min_p)
    flat = smallest(None, flat) if min_p else flat
    result: Tensor = flat.reshape(scores.shape)
    return result


@cache
def _sampler(scale: float, **options: Any) -> Callable[[Tensor], Tensor]:
    return lambda scores: kept(scores / scale, **options)


Trial = Callable[[Case], Engine]


def clean(case: Case, most: int = 50) -> Engine:
    """Another attention, batch, padding or a cache; sampled at another temperature than the log-probabilities are of; or rounded."""
    scale = case.one_of(1.0, 1.0, 0.7, 1.3)
    ids = case.text(None if scale == 1 else _sampler(scale), most)
    model, way = case.subject.engine(attention=case.one_of("sdpa", "eager")), case.one_of("batch", "alone", "padded", "cached", "written")
    if way == "alone":
        return case.judge(ids, torch.cat([chosen(logits(model, row[None]).float(), row[None]) for row in ids]))
    if way == "padded":
        pad = case.one_of(*range(1, 14))
        whole = torch.cat([torch.full((len(ids), pad), 2), ids], 1)
        mask = torch.cat([torch.zeros(len(ids), pad), torch.ones_like(ids)], 1).long()
        scores = logits(model, whole, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0))
        return case.judge(ids, chosen(scores[:, pad:].float(), ids))
    if way == "cached":
        cached, steps = None, []
        for at in range(ids.shape[1] - 1):
            scores, cached = decoded(model, ids[:, at : at + 1], cached)
            steps.append(scores[:, -1])
        return case.judge(ids, chosen(torch.stack(steps, 1).float(), ids))
    log_p = chosen(logits(model, ids).float(), ids)
    return case.judge(ids, log_p.double().round(decimals=4) if way == "written" else log_p)


def temperature(case: Case) -> Engine:
    """Log-probabilities at a temperature of 0.7 to 1.3, but not within 0.03 of 1, on tokens sampled at it or at 1."""
    scale = case.uniform(0.7, 0.97) if case.one_of(True, False) else case.uniform(1.03, 1.3)
    ids = case.text(case.one_of(None, _sampler(min((0.7, 1.3), key=lambda each: abs(each - scale)))))
    return case.judge(ids, chosen(logits(case.subject.engine(), ids).float() / scale, ids))


def logarithms(case: Case) -> Engine:
    """Log-probabilities to base 2 or 10."""
    ids = case.text()
    return case.judge(ids, chosen(logits(case.subject.engine(), ids).float(), ids) / math.log(case.one_of(2, 10)))


def filtered(case: Case) -> Engine:
    """Sampled and written after top-p, top-k or min-p."""
    options = case.one_of({"top_p": 0.82}, {"top_p": 0.9}, {"top_p": 0.95}, {"top_k": 10}, {"top_k": 20}, {"min_p": 0.02}, {"min_p": 0.07})
    ids = case.text(_sampler(1.0, **options))
    return case.judge(ids, chosen(kept(logits(case.subject.engine(), ids).float(), **options), ids))


def capped(case: Case) -> Engine:
    """Logits soft-capped at 8 to 40, which the model does not do."""
    ids, by = case.text(), case.uniform(8, 40)
    return case.judge(ids, chosen(by * torch.tanh(logits(case.subject.engine(), ids).float() / by), ids))


def last_norm(case: Case) -> Engine:
    """Another epsilon of the last norm, which looks like a temperature in part."""
    ids, norm = case.text(), case.subject.engine().model.norm
    before, norm.variance_epsilon = norm.variance_epsilon, 10 ** case.uniform(-2.5, -1)
    try:
        return case.judge(ids, chosen(logits(case.subject.engine(), ids).float(), ids))
    finally:
        norm.variance_epsilon = before


def parts(case: Case) -> Engine:
    """Tensor parallelism: the sums of two projections in 2 or 4 parts, each rounded to bf16."""
    ids, model, count = case.text(), case.subject.engine(attention=case.one_of("sdpa", "eager")), case.one_of(2, 4)

    def summed(module: Any, given: Any, result: Any) -> Any:
        pieces = zip(given[0].chunk(count, -1), module.weight.chunk(count, -1), strict=True)
        return sum(torch.nn.functional.linear(x, weight) for x, weight in pieces)

    hooks = [each.register_forward_hook(summed) for layer in model.model.layers for each in (layer.self_attn.o_proj, layer.mlp.down_proj)]
    try:
        return case.judge(ids, chosen(logits(model, ids).float(), ids))
    finally:
        for hook in hooks:
            hook.remove()


def forbidden(case: Case) -> Engine:
    """A logit bias that forbids a token."""
    ids = case.text()
    scores = logits(case.subject.engine(), ids).float()
    scores[..., int(ids[0, 1])] = -torch.inf
    return case.judge(ids, chosen(scores, ids))


def softmax(case: Case) -> Engine:
    """Log-probabilities computed in bf16."""
    ids = case.text()
    return case.judge(ids, chosen(logits(case.subject.engine(), ids), ids))


def head(case: Case) -> Engine:
    """The head in fp32, which deviates less than bf16."""
    ids, model = case.text(), case.subject.engine()
    hidden = model.model(ids, use_cache=False).last_hidden_state[:, :-1].float()
    return case.judge(ids, chosen(hidden @ model.lm_head.weight.float().T, ids))


def offset(case: Case) -> Engine:
    """Log-probabilities one or two tokens too early or too late."""
    ids, by = case.text(), case.one_of(1, -1, 2, -2)
    log_p = chosen(logits(case.subject.engine(), ids).float(), ids).roll(by, 1)
    log_p[:, slice(0, by) if by > 0 else slice(by, None)] = -4.0
    return case.judge(ids, log_p)


def context(case: Case) -> Engine:
    """A beginning-of-text token that the file does not have."""
    ids = case.text()
    whole = torch.cat([torch.zeros(len(ids), 1, dtype=torch.int64), ids], 1)
    return case.judge(ids, chosen(logits(case.subject.engine(), whole)[:, 1:].float(), ids))


@cache
def _to(weights: Any) -> Callable[[Tensor], Tensor]:
    return lambda weight: fake_quantized(weight, weights)


def quantized(changed: Callable[[Tensor], Tensor]) -> Trial:
    """Quantized weights of the layers."""

    def trial(case: Case) -> Engine:
        ids = case.text()
        model = case.subject.engine(changed=changed, attention=case.one_of("sdpa", "eager"))
        return case.judge(ids, chosen(logits(model, ids).float(), ids))

    return trial


@dataclass(frozen=True)
class Expected:
    """A trial, the verdict and cause that are right (None where no cause that is tried explains it), and the models that it runs on."""

    trial: Trial
    verdict: str
    kind: str | None
    models: tuple[str, ...] = MODELS


# With random weights the rounding of the head is too small a part of bf16's to be seen, and a cap on their small logits is a temperature.
_TRAINED = (*SAMPLES, "untied")
TRIALS = {
    "clean": Expected(clean, "within", None),
    "tensor parallelism": Expected(parts, "within", None),
    "clean mixture of experts": Expected(clean, "within", None, ("mixture",)),
    "head in fp32": Expected(head, "within", None, _TRAINED),
    "temperature": Expected(temperature, "beyond", "temperature"),
    "logarithms": Expected(logarithms, "beyond", "logarithm"),
    "filter": Expected(filtered, "beyond", "filter"),
    "forbidden token": Expected(forbidden, "beyond", "forbidden"),
    "softmax in bf16": Expected(softmax, "beyond", "rounded", _TRAINED),
    "offset": Expected(offset, "beyond", "offset"),
    "fp8": Expected(quantized(_to("fp8")), "beyond", "quantized"),
    "fp8, a scale per matrix": Expected(quantized(_to("fp8_tensor")), "beyond", "quantized"),
    "soft-capped logits": Expected(capped, "beyond", None, _TRAINED),
    "epsilon of the last norm": Expected(last_norm, "beyond", None, _TRAINED),
    "beginning of text": Expected(context, "beyond", None, SAMPLES),
}


@contextmanager
def subjects() -> Iterator[Callable[[str], Subject]]:
    """Open each model once."""
    with ExitStack() as stack:
        opened: dict[str, Subject] = {}

        def subject(name: str) -> Subject:
            if name not in opened:
                folder = sample_folder(name) if name not in _BUILT else Path(stack.enter_context(tempfile.TemporaryDirectory()))
                if name in _BUILT:
                    _BUILT[name](folder)
                model = stack.enter_context(OpenModel(str(folder), Access(local=True), dtype="float32", device="cpu"))
                opened[name] = Subject(name, model, folder)
            return opened[name]

        with torch.no_grad():
            yield subject


@dataclass(frozen=True, slots=True)
class Outcome:
    """The judgement of one trial. advised: that of another with the tokens that the report asks for, where it does and they exist."""

    case: Case
    engine: Engine
    expected: Expected

    @property
    def enough(self) -> bool:
        """Whether there are the tokens to decide."""
        return self.engine.compared >= ENOUGH and self.engine.sequences >= 8

    @property
    def kinds(self) -> list[str]:
        """The causes that explain the difference."""
        return [cause.cause for cause in self.engine.causes if cause.explains == "all" or cause.cause == "forbidden"]

    @property
    def right(self) -> bool:
        """Whether the verdict is right, and the fault named, or none."""
        named = self.expected.kind in self.kinds if self.expected.kind else not self.kinds
        return named and self.engine.verdict == self.expected.verdict

    @property
    def wrong(self) -> bool:
        """Whether it accuses an engine that is clean, or of another fault only."""
        if self.expected.verdict == "within":
            return bool(self.engine.causes) or self.engine.verdict == "beyond"
        return bool(self.kinds) and self.expected.kind not in self.kinds


def outcome(name: str, subject: Callable[[str], Subject], seed: int) -> Outcome:
    """Make one trial."""
    expected = TRIALS[name]
    case = Case(name, subject(expected.models[seed % len(expected.models)]), seed)
    return Outcome(case, expected.trial(case), expected)
