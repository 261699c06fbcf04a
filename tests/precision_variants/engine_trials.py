"""Trials of the judgement on an engine's log-probabilities: clean engines in bf16, and engines with one injected fault each.

``python -m tests.precision_variants.engine_trials [--trials 200] [NAME ...]`` prints, for each engine, the shares of trials that are within
and beyond, and that name the fault. Engines are models of transformers; the text of every trial is sampled anew.
"""

import argparse
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from analyzers.checkpoints import Access
from analyzers.language_models.load import OpenModel, open_model
from analyzers.language_models.samples import sample_folder
from analyzers.precision_variants.engine.compare import EngineComparison
from analyzers.precision_variants.engine.measurements import Engine
from analyzers.precision_variants.engine.reading import sequences
from analyzers.precision_variants.losses import Objective
from analyzers.precision_variants.measure import Measurement
from analyzers.precision_variants.model_parts import ModelParts
from analyzers.precision_variants.variant_weights import fake_quantized
from analyzers.terminal import print_line

MODELS = ("tiny-bf16", "tiny-fp32", "tiny-step-4", "tiny-fp16-mixed")
SEQUENCES, LENGTH = 16, 96
_MANY = 96
_POOL = 128  # Sampled sequences, of which each trial draws SEQUENCES.
FIRST = 3  # Ids below are special tokens.


def mixture(folder: Path) -> None:
    """Save a mixture of experts with random weights, whose routers are often nearly undecided."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64, "head_dim": 16}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, num_experts=8, num_experts_per_tok=2, decoder_sparse_step=1))
    model.save_pretrained(folder)
    for file in sample_folder("tiny-bf16").glob("token*"):
        shutil.copy(file, folder)


class Subject:
    """A model that is analyzed, and models of transformers that play the engine."""

    def __init__(self, name: str, opened: OpenModel, folder: Path) -> None:
        self.name, self.folder, self.opened = name, folder, opened

    @cached_property
    def anatomy(self) -> ModelParts:
        """The model that the analysis runs."""
        from analyzers.language_models.prompts import Batch

        ids = torch.zeros(1, 2, dtype=torch.int64)
        self.opened.check(Batch(ids, ids, (2,)))
        for _ in self.opened.fetch():
            pass
        return ModelParts.of(self.opened.load())

    @cache  # noqa: B019 - as long as the process
    def engine(
        self, dtype: torch.dtype = torch.bfloat16, attention: str = "sdpa", weights: str | None = None, folder: Path | None = None
    ) -> Any:
        """The model as transformers loads it."""
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(folder or self.folder, dtype=dtype, attn_implementation=attention)
        for parameter in model.model.layers.parameters() if weights else ():
            if parameter.dim() == 2:
                parameter.data = fake_quantized(parameter.data.float(), weights).to(dtype)  # type: ignore[arg-type]
        return model.eval().requires_grad_(False)

    @cache  # noqa: B019 - as long as the process
    def _pool(self, sample: Callable[[Tensor], Tensor] | None = None) -> Tensor:
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

    def text(self, seed: int, sample: Callable[[Tensor], Tensor] | None = None, sequences: int = SEQUENCES) -> Tensor:
        """Tokens (S, L): a draw of sequences that were sampled from the model. sample: changes the logits."""
        drawn = torch.randperm(_POOL, generator=torch.Generator().manual_seed(seed))[:sequences]
        return self._pool(sample)[drawn]

    def judge(self, ids: Tensor, log_p: Tensor) -> Engine:
        """Judge an engine's log-probabilities (S, L - 1) of the tokens but the first."""
        lines = [{"token_ids": row, "logprobs": values} for row, values in zip(ids.tolist(), log_p.double().tolist(), strict=True)]
        engine = EngineComparison(sequences(enumerate(lines, 1)), tuple(map(tuple, ids.tolist())), self.opened, "sdpa", {})
        measured = Measurement(self.anatomy, ids, "sdpa", Objective(), False, None, engine.runs, 0)
        steps = engine.compare(measured)
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                result: Engine = finished.value
                return result


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


def kept(scores: Tensor, top_p: float = 1.0, top_k: int = 0) -> Tensor:
    """The logits that top-p and top-k keep, by the processors of transformers."""
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    flat: Any = scores.reshape(-1, scores.shape[-1])
    flat = TopKLogitsWarper(top_k)(None, flat) if top_k else flat
    flat = TopPLogitsWarper(top_p)(None, flat) if top_p < 1 else flat
    result: Tensor = flat.reshape(scores.shape)
    return result


def penalized(scores: Tensor, ids: Tensor, by: float) -> Tensor:
    """The logits under a repetition penalty, by the processor of transformers."""
    from transformers import RepetitionPenaltyLogitsProcessor

    process: Any = RepetitionPenaltyLogitsProcessor(by)
    return torch.stack([process(ids[:, : at + 1], scores[:, at]) for at in range(scores.shape[1])], 1)


@cache
def _sampler(scale: float, top_p: float, top_k: int) -> Callable[[Tensor], Tensor]:
    return lambda scores: kept(scores / scale, top_p, top_k)


Trial = Callable[[Subject, int], Engine]


def _uniform(seed: int, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(1, generator=torch.Generator().manual_seed(seed)))


def clean(subject: Subject, seed: int) -> Engine:
    """Another attention, batch, padding or a cache."""
    ids, model = subject.text(seed), subject.engine(attention=("sdpa", "eager")[seed % 2])
    way = seed // 2 % 4
    if way == 0:
        return subject.judge(ids, chosen(logits(model, ids).float(), ids))
    if way == 1:
        return subject.judge(ids, torch.cat([chosen(logits(model, row[None]).float(), row[None]) for row in ids]))
    if way == 2:
        pad = 1 + seed % 13
        whole = torch.cat([torch.full((len(ids), pad), 2), ids], 1)
        mask = torch.cat([torch.zeros(len(ids), pad), torch.ones_like(ids)], 1).long()
        scores = logits(model, whole, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0))
        return subject.judge(ids, chosen(scores[:, pad:].float(), ids))
    cached, steps = None, []
    for at in range(ids.shape[1] - 1):
        scores, cached = decoded(model, ids[:, at : at + 1], cached)
        steps.append(scores[:, -1])
    return subject.judge(ids, chosen(torch.stack(steps, 1).float(), ids))


def temperature(subject: Subject, seed: int) -> Engine:
    """Log-probabilities at a temperature of 0.5 to 0.95."""
    ids = subject.text(seed)
    return subject.judge(ids, chosen(logits(subject.engine(), ids).float() / _uniform(seed, 0.5, 0.95), ids))


def top_p(subject: Subject, seed: int) -> Engine:
    """Sampled and written after top-p."""
    p = (0.8, 0.9, 0.95)[seed % 3]
    ids = subject.text(seed, _sampler(1.0, p, 0))
    return subject.judge(ids, chosen(kept(logits(subject.engine(), ids).float(), p), ids))


def top_k(subject: Subject, seed: int) -> Engine:
    """Sampled and written after top-k."""
    k = (10, 20, 50)[seed % 3]
    ids = subject.text(seed, _sampler(1.0, 1.0, k))
    return subject.judge(ids, chosen(kept(logits(subject.engine(), ids).float(), top_k=k), ids))


def tempered_top_p(subject: Subject, seed: int) -> Engine:
    """Sampled and written after a temperature and top-p."""
    scale, p = (0.6, 0.7, 0.8)[seed % 3], (0.8, 0.95)[seed // 3 % 2]
    ids = subject.text(seed, _sampler(scale, p, 0))
    return subject.judge(ids, chosen(kept(logits(subject.engine(), ids).float() / scale, p), ids))


def penalty(subject: Subject, seed: int) -> Engine:
    """A repetition penalty of 1.05 to 1.2."""
    ids, by = subject.text(seed), _uniform(seed, 1.05, 1.2)
    return subject.judge(ids, chosen(penalized(logits(subject.engine(), ids).float(), ids, by), ids))


def forbidden(subject: Subject, seed: int) -> Engine:
    """A logit bias that forbids the tokens of one byte."""
    ids = subject.text(seed)
    scores = logits(subject.engine(), ids).float()
    scores[..., int(ids[0, -1])] = -torch.inf
    return subject.judge(ids, chosen(scores, ids))


def softmax(subject: Subject, seed: int) -> Engine:
    """Log-probabilities computed in bf16."""
    ids = subject.text(seed)
    return subject.judge(ids, chosen(logits(subject.engine(), ids), ids))


def head(subject: Subject, seed: int) -> Engine:
    """The head in fp32, which deviates less than bf16."""
    ids, model = subject.text(seed), subject.engine()
    hidden = model.model(ids, use_cache=False).last_hidden_state[:, :-1].float()
    return subject.judge(ids, chosen(hidden @ model.lm_head.weight.float().T, ids))


def offset(subject: Subject, seed: int) -> Engine:
    """Log-probabilities one or two tokens too early or too late."""
    ids, by = subject.text(seed), (1, -1, 2, -2)[seed % 4]
    log_p = chosen(logits(subject.engine(), ids).float(), ids).roll(by, 1)
    log_p[:, slice(0, by) if by > 0 else slice(by, None)] = -4.0
    return subject.judge(ids, log_p)


def tokenizer(subject: Subject, seed: int) -> Engine:
    """Token ids under another vocabulary than the model's."""
    ids = subject.text(seed)
    log_p = chosen(logits(subject.engine(), ids).float(), ids)
    other = torch.randperm(512, generator=torch.Generator().manual_seed(seed))
    return subject.judge(other[ids], log_p)


def context(subject: Subject, seed: int) -> Engine:
    """A beginning-of-text token that the file does not have."""
    ids = subject.text(seed)
    whole = torch.cat([torch.zeros(len(ids), 1, dtype=torch.int64), ids], 1)
    return subject.judge(ids, chosen(logits(subject.engine(), whole)[:, 1:].float(), ids))


def quantized(weights: str) -> Trial:
    """Quantized weights of the layers."""

    def trial(subject: Subject, seed: int) -> Engine:
        ids = subject.text(seed)
        return subject.judge(ids, chosen(logits(subject.engine(weights=weights, attention=("sdpa", "eager")[seed % 2]), ids).float(), ids))

    return trial


def cache_in_fp8(subject: Subject, seed: int) -> Engine:
    """Keys and values rounded to E4M3 as a cache of transformers stores them."""
    from transformers import DynamicCache

    class Rounded(DynamicCache):
        def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *others: Any, **named: Any) -> Any:
            key, value = (each.to(torch.float8_e4m3fn).to(each.dtype) for each in (key_states, value_states))
            return super().update(key, value, layer_idx, *others, **named)

    ids = subject.text(seed)
    return subject.judge(ids, chosen(decoded(subject.engine(), ids, Rounded())[0][:, :-1].float(), ids))


def stale(subject: Subject, seed: int) -> Engine:
    """Weights of an earlier step."""
    ids = subject.text(seed)
    return subject.judge(ids, chosen(logits(subject.engine(folder=sample_folder("tiny-step-1")), ids).float(), ids))


def routing(subject: Subject, seed: int) -> Engine:
    """Routers whose logits are off by more than bf16 rounding. Flips are rare and large: it takes many tokens to see them."""
    ids, model = subject.text(seed, sequences=_MANY), subject.engine()
    generator = torch.Generator().manual_seed(seed)
    off = 0.02

    def disturb(module: Any, given: Any, result: Any) -> Any:
        scores = result[0] + off * torch.randn(result[0].shape, generator=generator)
        indices = scores.topk(result[2].shape[-1], -1).indices
        weights = torch.softmax(result[0].float(), -1).gather(-1, indices)
        return result[0], weights.to(result[1].dtype), indices

    hooks = [layer.mlp.gate.register_forward_hook(disturb) for layer in model.model.layers]
    try:
        return subject.judge(ids, chosen(logits(model, ids).float(), ids))
    finally:
        for hook in hooks:
            hook.remove()


def other_mixture(subject: Subject, seed: int) -> Engine:
    """Weights of a mixture of experts that are each off by 0.3 to 1%, which flips routing too."""
    ids, model = subject.text(seed, sequences=_MANY), subject.engine()
    generator, by = torch.Generator().manual_seed(seed), _uniform(seed, 0.003, 0.01)
    weights = [(weight, weight.clone()) for weight in model.parameters()]
    for weight, before in weights:
        weight.copy_(before * (1 + by * torch.randn(weight.shape, generator=generator)))
    try:
        return subject.judge(ids, chosen(logits(model, ids).float(), ids))
    finally:
        for weight, before in weights:
            weight.copy_(before)


def positions(subject: Subject, seed: int) -> Engine:
    """Rotary frequencies that are off by 0.3%, whose error grows with the position and flips routing too: it is no other experts alone."""
    ids, model = subject.text(seed, sequences=_MANY), subject.engine()
    frequencies = model.model.rotary_emb.inv_freq
    before = frequencies.clone()
    frequencies.mul_(1.003)
    try:
        return subject.judge(ids, chosen(logits(model, ids).float(), ids))
    finally:
        frequencies.copy_(before)


@dataclass(frozen=True)
class Expected:
    """A trial, the verdict and cause that are right, and the models that it runs on."""

    trial: Trial
    verdict: str
    kind: str | None
    models: tuple[str, ...] = MODELS


TRIALS = {
    "clean": Expected(clean, "within", None),
    "clean mixture of experts": Expected(clean, "within", None, ("mixture",)),
    "temperature": Expected(temperature, "beyond", "temperature"),
    "top-p": Expected(top_p, "beyond", "filter"),
    "top-k": Expected(top_k, "beyond", "filter"),
    "temperature and top-p": Expected(tempered_top_p, "beyond", "filter"),
    "repetition penalty": Expected(penalty, "beyond", "penalty"),
    "forbidden token": Expected(forbidden, "beyond", "forbidden"),
    "softmax in bf16": Expected(softmax, "beyond", "rounded"),
    "head in fp32": Expected(head, "within", "higher_precision"),
    "offset": Expected(offset, "beyond", "offset"),
    "other tokenizer": Expected(tokenizer, "beyond", "tokens"),
    "beginning of text": Expected(context, "beyond", "context"),
    "int8": Expected(quantized("int8"), "beyond", "quantized"),
    "fp8": Expected(quantized("fp8"), "beyond", "quantized"),
    "mxfp4": Expected(quantized("mxfp4"), "beyond", "quantized"),
    "fp8 cache": Expected(cache_in_fp8, "beyond", "kv_cache"),
    "stale weights": Expected(stale, "beyond", "other_weights", ("tiny-step-3", "tiny-step-4")),
    "routing": Expected(routing, "beyond", "routing", ("mixture",)),
    "other weights of a mixture of experts": Expected(other_mixture, "beyond", "other_weights", ("mixture",)),
    "positions of a mixture of experts": Expected(positions, "beyond", "other_weights", ("mixture",)),
}


@contextmanager
def subjects() -> Iterator[Callable[[str], Subject]]:
    """Open each model once."""
    with ExitStack() as stack:
        made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        opened: dict[str, Subject] = {}

        def subject(name: str) -> Subject:
            if name not in opened:
                if name == "mixture":
                    mixture(made)
                folder = made if name == "mixture" else sample_folder(name)
                model = stack.enter_context(open_model(str(folder), Access(local=True), dtype="float32", device="cpu"))
                opened[name] = Subject(name, model, folder)
            return opened[name]

        with torch.no_grad():
            yield subject


def outcomes(name: str, subject: Callable[[str], Subject], seeds: range) -> Counter[str]:
    """Count the verdicts of trials, and under "named" those with the expected cause first, under "false" those that name another."""
    expected, counts = TRIALS[name], Counter[str]()
    for seed in seeds:
        engine = expected.trial(subject(expected.models[seed % len(expected.models)]), seed)
        counts[engine.verdict] += 1
        kinds = [cause.kind for cause in engine.causes if cause.explains != "part" or cause.kind == "forbidden"]
        counts["named"] += expected.kind in kinds if expected.kind else not kinds
        counts["right"] += engine.verdict == expected.verdict and (expected.kind in kinds if expected.kind else not kinds)
        counts["others"] += len([kind for kind in kinds if kind != expected.kind])
    return counts


def main() -> None:
    """Print the shares of each trial."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=[*TRIALS])
    parser.add_argument("--trials", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with subjects() as subject:
        for name in options.names:
            counts = outcomes(name, subject, range(options.trials))
            shares = ", ".join(
                f"{key} {counts[key] / options.trials:.3f}" for key in ("right", "within", "undecided", "beyond", "named", "others")
            )
            print_line(f"{name}: {shares}")


if __name__ == "__main__":
    main()
