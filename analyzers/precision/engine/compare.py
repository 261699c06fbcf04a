"""Compares an engine's log-probabilities with fp32 runs of the model, with its own bf16 run, and with what the engine may have done."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec

import numpy as np
import torch

from analyzers.core.errors import InvalidData, MantissaError
from analyzers.core.request import Progress
from analyzers.language_models.ffn import text_config
from analyzers.language_models.load import OpenModel
from analyzers.language_models.model_failures import explaining_failures
from analyzers.precision.casts import STORED, Rounding, RunnableModel
from analyzers.precision.engine import causes, comparison
from analyzers.precision.engine.causes import Logits, Tried
from analyzers.precision.engine.comparison import BAND, Floats, Units
from analyzers.precision.engine.measurements import Cause, Engine, NearRun, TokenDifference
from analyzers.precision.engine.runs import EngineRun, Rows, given_log_p, run
from analyzers.precision.lockstep import Steps
from analyzers.precision.logprobs import EngineSequence
from analyzers.precision.run import RunOptions
from analyzers.precision.variants import DEFAULT, PRESETS, Quantization, Settings

LOGIT_TOKENS, LOGIT_BYTES = 1_024, 64 << 20
"""Tokens, spread over all, and bytes of fp32 logits of a run that are kept, to try causes on."""
_WORST = 100
_QUANTIZED: tuple[Quantization, ...] = ("fp8", "fp8_tensor")


@dataclass(frozen=True, eq=False)
class EngineComparison:
    """An engine's sequences on one model. rows: their token ids; attention: of the reference; asked: settings and attention of the
    requested variants.
    """

    sequences: tuple[EngineSequence, ...]
    rows: Rows
    opened: OpenModel
    attention: str
    asked: Mapping[str, tuple[Settings, str]]

    @cached_property
    def variants(self) -> dict[str, tuple[Settings, str]]:
        """The presets that tell how much bf16 costs where, and the requested variants."""
        presets = {name: (PRESETS[name], self.attention) for name in DEFAULT}
        return {name: each for name, each in presets.items() if name == "bf16" or each not in self.asked.values()} | {
            name: each for name, each in self.asked.items() if each != presets["bf16"]
        }

    @property
    def weights(self) -> tuple[Quantization, ...]:
        """The quantized weights that are tried: none without torchao."""
        return _QUANTIZED if find_spec("torchao") is not None else ()

    @property
    def runs(self) -> int:
        """Number of runs: the reference, the variants, and one of each kind of quantized weights."""
        return 1 + len(self.variants) + len(self.weights)

    @cached_property
    def _given(self) -> list[Floats]:
        return given_log_p(self.sequences)

    @cached_property
    def _at(self) -> list[tuple[int, int]]:
        """Sequence and position of the n tokens that the engine gave a log-probability, minus infinity included."""
        return [
            (index, position + 1) for index, values in enumerate(self._given) for position in np.flatnonzero(~np.isnan(values)).tolist()
        ]

    def _over(self, log_p: list[Floats]) -> Floats:
        """Return the values of the n tokens."""
        return np.array([log_p[index][position - 1] for index, position in self._at])

    def compare(self, model: RunnableModel, steps: Steps) -> Generator[Progress, None, Engine]:
        """Make every run. Raises InvalidData if no log-probability is finite."""
        engine = self._over(self._given)
        finite = np.isfinite(engine)
        if not finite.any():
            raise InvalidData("Every log-probability is minus infinity: there is nothing to compare.")
        vocabulary = int(text_config(self.opened.outline).vocab_size)
        most = min(len(engine), LOGIT_TOKENS, max(1, LOGIT_BYTES // (4 * vocabulary)))
        sampled = np.unique(np.linspace(0, len(engine) - 1, most).astype(np.int64))
        asked: dict[int, list[int]] = {}
        for each in sampled.tolist():
            asked.setdefault(self._at[each][0], []).append(self._at[each][1])
        base = yield from self._run(model, steps, "reference", Settings(), self.attention, self.rows, asked)
        reference = self._over(base.log_p)
        if not np.isfinite(reference[finite]).all():
            raise InvalidData("The model's fp32 run gives some of these tokens no finite log-probability: its weights are damaged.")
        e = engine - reference
        runs: dict[str, EngineRun] = {}
        for name, (settings, attention) in self.variants.items():
            runs[name] = yield from self._run(model, steps, name, settings, attention, self.rows, asked if name == "bf16" else None)
        deviations = {name: self._over(each.log_p) - reference for name, each in runs.items()}
        b = deviations["bf16"]
        if not np.isfinite(b).all():
            raise InvalidData("The model's own bf16 run is not finite on these tokens: there is nothing to measure the engine by.")
        lengths = [int((~np.isnan(values)).sum()) for values in self._given]
        units = Units.of(lengths)
        tried = [*causes.shifted(self._given, base.log_p, self._at), *causes.other_logarithms(engine, reference)]
        for kind in self.weights:
            rounding, settings = replace(STORED, before=torch.bfloat16), Settings(weights=kind)
            result = yield from self._run(model, steps, f"weights in {kind}", settings, self.attention, self.rows, rounding=rounding)
            tried.append(Tried("quantized", kind, engine - self._over(result.log_p)))
        tried += causes.changed_logits(self._logits(base, runs["bf16"], sampled, engine), len(e))
        size = units.ratio(e, b, finite)
        found = causes.explaining(causes.judged(tried, e, b, units), units)
        forced = bool(found) or not bool(finite.all())
        if (cause := causes.rounded(engine, reference, b, units)) is not None:
            forced |= cause.gain_low is not None and cause.gain_low > causes.GAIN
            found.append(cause)
        if not finite.all() and not any(cause.cause == "filter" for cause in found):
            found.append(Cause(cause="forbidden", value=int((~finite).sum()), explains=causes.explained(size)))
        verdict = comparison.verdict(size, forced)
        ordered = np.argsort(-np.abs(np.where(finite, e, np.inf)), kind="stable")
        tokens = self._tokens(ordered[:_WORST].tolist(), engine, reference, b)
        near = [
            NearRun(run=name, difference=comparison.difference(d[finite]), ratio=units.ratio(e, d, finite))
            for name, d in deviations.items()
            if np.isfinite(d[finite]).all()
        ]
        return Engine(
            form=self.sequences[0].form,
            sequences=len(self.rows),
            compared=len(e),
            forbidden=int((~finite).sum()),
            difference=comparison.difference(e[finite]),
            bf16=comparison.difference(b[finite]),
            ratio=size,
            band=BAND,
            verdict=verdict,
            needed=comparison.needed(size, len(e)) if verdict == "undecided" else None,
            nearest=tuple(sorted(near, key=lambda each: abs(np.log(each.ratio.value or np.inf)))),
            tokens=tuple(tokens),
            causes=tuple(found),
            not_tried=() if self.weights else _QUANTIZED,
        )

    def _run(
        self,
        model: RunnableModel,
        steps: Steps,
        name: str,
        settings: Settings,
        attention: str,
        rows: Rows,
        asked: Mapping[int, list[int]] | None = None,
        rounding: Rounding = STORED,
    ) -> Generator[Progress, None, EngineRun]:
        result: EngineRun | None = None
        with explaining_failures(name):
            for result in run(model, rows, RunOptions(settings, attention, rounding), asked):
                if result is None:
                    yield steps.step(f"{name}, the engine's tokens", 2)
        assert result is not None
        return result

    def _logits(self, base: EngineRun, bf16: EngineRun, sampled: comparison.Integers, engine: Floats) -> Logits:
        at = [self._at[each] for each in sampled.tolist()]
        return Logits(
            torch.stack([base.logits[each] for each in at]),
            torch.stack([bf16.logits[each] for each in at]),
            sampled,
            torch.tensor([self.rows[index][position] for index, position in at]),
            torch.from_numpy(engine[sampled]).float(),
        )

    def _tokens(self, chosen: list[int], engine: Floats, reference: Floats, b: Floats) -> list[TokenDifference]:
        """Return tokens with their texts, "" without a tokenizer and for a part of a character."""
        places = [self._at[at] for at in chosen]
        ids = [self.rows[index][position] for index, position in places]
        try:
            texts = self.opened.tokenizer.decode([[token] for token in ids])
        except MantissaError:
            texts = [""] * len(ids)
        return [
            TokenDifference(
                sequence=index,
                position=position,
                token=token,
                text="" if "\N{REPLACEMENT CHARACTER}" in text else text,
                engine=float(engine[at]) if np.isfinite(engine[at]) else None,
                reference=float(reference[at]),
                bf16=float(reference[at] + b[at]),
            )
            for at, (index, position), token, text in zip(chosen, places, ids, texts, strict=True)
        ]
