"""Compares an engine's log-probabilities with fp32 runs of the model, with its own bf16 run, and with what the engine may have done."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec

import numpy as np
import torch

from analyzers.core.errors import InvalidData, InvalidRequest, MantissaError
from analyzers.language_models.cache_quantization import FP8_CACHE, supports_fp8_cache
from analyzers.language_models.ffn import text_config
from analyzers.language_models.load import OpenModel
from analyzers.precision_variants.engine import causes, comparison, routing
from analyzers.precision_variants.engine.causes import Logits, Tried
from analyzers.precision_variants.engine.comparison import BAND, PAIR_BAND, Floats, Units
from analyzers.precision_variants.engine.measurements import Cause, CauseKind, Engine, NearRun, NotTried, RunDifference, TokenDifference
from analyzers.precision_variants.engine.reading import EngineSequence
from analyzers.precision_variants.engine.runs import EngineRun, Rows, given_log_p, run
from analyzers.precision_variants.measure import Measurement
from analyzers.precision_variants.report import VariantProgress
from analyzers.precision_variants.staged_pass import PassOptions
from analyzers.precision_variants.variant_weights import STORED, Rounding
from analyzers.precision_variants.variants import DEFAULT, PRESETS, Quantization, Settings

LOGIT_TOKENS, LOGIT_BYTES = 1_024, 64 << 20
"""Tokens, spread over all, and bytes of fp32 logits of a run that are kept, to try causes on."""
_WORST, _OTHERS = 20, 80
_QUANTIZED: tuple[Quantization, ...] = ("int8", "fp8", "fp8_tensor", "int4", "mxfp4")
_CACHE = "fp8_e4m3"
# An engine that deviates less than this share of bf16's deviation, by its whole interval, is more precise. In trials the interval of no
# clean file ended below 0.998 (200 files), and that of no file of a head in fp32 above 0.90 (30).
_LESS = 0.95
_MEANINGLESS = 1.0  # Nats by which another tokenizer's ids are less likely to the model than to the engine, at least.


@dataclass(frozen=True, eq=False, slots=True)
class _Candidate:
    """Runs in fp32 and bf16 of what the engine may have done. added, dropped: tokens at the start of every row that it had before, or had
    not.
    """

    cause: CauseKind
    value: str = ""
    weights: Quantization | None = None
    attention: str | None = None
    added: tuple[int, ...] = ()
    dropped: int = 0


@dataclass(frozen=True, eq=False)
class EngineComparison:
    """An engine's sequences on one model. rows: their token ids; attention: of the reference; asked: settings and attention of the
    requested variants; against: the log-probabilities of another run on the same tokens, or none.
    """

    sequences: tuple[EngineSequence, ...]
    rows: Rows
    opened: OpenModel
    attention: str
    asked: Mapping[str, tuple[Settings, str]]
    against: tuple[EngineSequence, ...] = ()

    @cached_property
    def variants(self) -> dict[str, tuple[Settings, str]]:
        """The presets that tell how much bf16 costs where, and the requested variants."""
        presets = {name: (PRESETS[name], self.attention) for name in DEFAULT}
        return {name: each for name, each in presets.items() if name == "bf16" or each not in self.asked.values()} | {
            name: each for name, each in self.asked.items() if each != presets["bf16"]
        }

    @cached_property
    def candidates(self) -> tuple[list[_Candidate], list[NotTried]]:
        """What is tried in runs, and what is not: quantized weights without torchao, a cache where attention cannot be replaced."""
        found, missing = list[_Candidate](), list[NotTried]()
        if find_spec("torchao") is not None:
            found += [_Candidate("quantized", weights, weights) for weights in _QUANTIZED]
        else:
            missing.append(NotTried(cause="quantized", value=", ".join(_QUANTIZED)))
        if self.attention == "sdpa" and supports_fp8_cache(self.opened.outline):
            found.append(_Candidate("kv_cache", _CACHE, attention=FP8_CACHE))
        else:
            missing.append(NotTried(cause="kv_cache", value=_CACHE))
        begin = getattr(text_config(self.opened.outline), "bos_token_id", None)
        fits = self.opened.context is None or max(map(len, self.rows)) < self.opened.context
        if isinstance(begin, int) and not any(row[0] == begin for row in self.rows) and fits:
            found.append(_Candidate("context", "added", added=(begin,)))
        elif isinstance(begin, int) and all(row[0] == begin and len(row) > 2 for row in self.rows):
            found.append(_Candidate("context", "dropped", dropped=1))
        return found, missing

    @property
    def runs(self) -> int:
        """Number of runs: the reference, the variants and the candidates."""
        return 1 + len(self.variants) + 2 * len(self.candidates[0])

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

    def compare(self, measured: Measurement) -> Generator[VariantProgress, None, Engine]:
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
        base = yield from self._run(measured, "reference", Settings(), self.attention, self.rows, asked)
        reference = self._over(base.log_p)
        if not np.isfinite(reference[finite]).all():
            raise InvalidData("The model's fp32 run gives some of these tokens no finite log-probability: its weights are damaged.")
        e = engine - reference
        runs: dict[str, EngineRun] = {}
        for name, (settings, attention) in self.variants.items():
            runs[name] = yield from self._run(measured, name, settings, attention, self.rows, asked if name == "bf16" else None)
        deviations = {name: self._over(each.log_p) - reference for name, each in runs.items()}
        b = deviations["bf16"]
        if not np.isfinite(b).all():
            raise InvalidData("The model's own bf16 run is not finite on these tokens: there is nothing to measure the engine by.")
        lengths = [int((~np.isnan(values)).sum()) for values in self._given]
        units = Units.of(lengths)
        tried = list(causes.shifted(self._given, base.log_p, self._at))
        missing = list(self.candidates[1])
        fragile = [*runs.values()]
        for candidate in self.candidates[0]:
            try:
                result = yield from self._candidate(measured, candidate, Settings(weights=candidate.weights))
                narrow = yield from self._candidate(measured, candidate, Settings(dtype="bf16", weights=candidate.weights))
            except InvalidRequest:  # mxfp4 in rows that its blocks do not divide
                missing.append(NotTried(cause=candidate.cause, value=candidate.value))
                yield measured.finished(candidate.cause)
                yield measured.finished(candidate.cause)
                continue
            log_p = self._over(result.log_p)
            tried.append(Tried(candidate.cause, candidate.value, engine - log_p, self._over(narrow.log_p) - log_p))
            if not candidate.added and not candidate.dropped:
                fragile += [result, narrow]
        known = self._logits(base, runs["bf16"], sampled, engine)
        tried += causes.changed_logits(known, len(e))
        size = units.ratio(e, b, finite)
        judged = causes.judged(tried, e, b, units)
        explaining = causes.explaining(judged, units)
        if size.value is not None and size.value > 1 and not any(cause.explains == "all" for cause in explaining):
            tried += causes.tempered_filters(known, len(e))
            judged = causes.judged(tried, e, b, units)
            explaining = causes.explaining(judged, units)
        forced, others = self._others(engine, reference, e, deviations, units, vocabulary)
        verdict = comparison.verdict(size, bool(explaining) or forced or not finite.all())
        found = [*explaining, *others]
        if not finite.all() and not any(cause.cause in ("filter", "forbidden") for cause in found):
            found.append(causes.forbidden(int((~finite).sum()), causes.explained(size)))
        if verdict == "beyond" and not any(cause.explains == "all" for cause in found):
            left = [causes.OTHER_WEIGHTS] if base.experts[0] is None else self._routing(e, b, base, fragile, units)
            if left[0].explains == "elimination" and (open := causes.possible(judged)):
                left = [*open, *(cause.model_copy(update={"told_apart": False}) for cause in left)]
            found += left
        ordered = np.argsort(-np.abs(np.where(finite, e, np.inf)), kind="stable")
        rest = ordered[_WORST:]
        evenly = np.unique(np.linspace(0, len(rest) - 1, min(len(rest), _OTHERS)).astype(np.int64))
        tokens = [self._token(int(at), engine, reference, b) for at in (*ordered[:_WORST], *rest[evenly])]
        near = [
            NearRun(run=name, difference=comparison.difference(d[finite]), ratio=units.ratio(e, d, finite))
            for name, d in deviations.items()
            if np.isfinite(d[finite]).all()
        ]
        kl, weights = comparison.divergence(e[finite])
        apart = runs["bf16"].rerouted(base)
        return Engine(
            form=self.sequences[0].form,
            sequences=len(self.rows),
            compared=len(e),
            forbidden=int((~finite).sum()),
            difference=comparison.difference(e[finite]),
            bf16=comparison.difference(b[finite]),
            ratio=size,
            band=BAND,
            visible=round(float(np.sqrt(BAND**2 - 1)), 2),
            verdict=verdict,
            needed=comparison.needed(size, len(e)) if verdict == "undecided" else None,
            kl=kl,
            importance_ratio=weights,
            nearest=tuple(sorted(near, key=lambda each: abs(np.log(each.ratio.value or np.inf)))),
            rerouted=None if apart is None else int(self._over(_by_sequence(apart, self.rows)).sum()),
            tokens=tuple(tokens),
            causes=tuple(found),
            tried=tuple(dict.fromkeys(each.cause for each in tried)),
            not_tried=tuple(missing),
            on=len(sampled),
            against=self._pair(engine, b, units) if self.against else None,
        )

    def _run(
        self,
        measured: Measurement,
        name: str,
        settings: Settings,
        attention: str,
        rows: Rows,
        asked: Mapping[int, list[int]] | None = None,
        rounding: Rounding = STORED,
    ) -> Generator[VariantProgress, None, EngineRun]:
        result: EngineRun | None = None
        options = PassOptions(settings, attention, rounding, kept=0)
        for result in run(measured.anatomy, rows, options, name, asked):
            if result is None:
                yield measured.pulse(f"{name}, the engine's tokens")
        yield measured.finished(f"{name}, the engine's tokens")
        assert result is not None
        return result

    def _candidate(self, measured: Measurement, candidate: _Candidate, settings: Settings) -> Generator[VariantProgress, None, EngineRun]:
        """Run a candidate; log-probabilities of the tokens that the reference has."""
        rows = tuple((*candidate.added, *row[candidate.dropped :]) for row in self.rows)
        rounding = replace(STORED, before=torch.bfloat16) if candidate.weights else STORED
        result = yield from self._run(measured, candidate.cause, settings, candidate.attention or self.attention, rows, rounding=rounding)
        front = np.full(candidate.dropped, np.nan)
        result.log_p = [np.concatenate([front, each])[len(candidate.added) :] for each in result.log_p]
        return result

    def _logits(self, base: EngineRun, bf16: EngineRun, sampled: comparison.Integers, engine: Floats) -> Logits:
        at = [self._at[each] for each in sampled.tolist()]
        starts = [self.sequences[index].start for index, _ in at]
        return Logits(
            torch.stack([base.logits[each] for each in at]),
            torch.stack([bf16.logits[each] for each in at]),
            sampled,
            torch.tensor([self.rows[index][position] for index, position in at]),
            torch.from_numpy(engine[sampled]).float(),
            [(self.rows[index][:position], self.rows[index][start:position]) for (index, position), start in zip(at, starts, strict=True)],
            torch.tensor(
                sorted({self.rows[i][at] for (i, at), value in zip(self._at, engine, strict=True) if value == -np.inf}), dtype=torch.int64
            ),
        )

    def _others(
        self, engine: Floats, reference: Floats, e: Floats, deviations: Mapping[str, Floats], units: Units, vocabulary: int
    ) -> tuple[bool, list[Cause]]:
        """Return whether one of them alone shows that rounding does not explain the difference, and causes that are no other reference."""
        finite, b, found = np.isfinite(engine), deviations["bf16"], list[Cause]()
        forced = False
        if (rounding := causes.rounded(engine)) is not None:
            value, to = rounding
            by = to(reference + b) - reference
            gain, low, high = units.quotient(by, b, finite, 0.99)
            remaining = units.ratio(e, by, finite)
            forced = low is not None and low > causes.GAIN
            explains = causes.explained(remaining)
            cause = Cause(cause="rounded", value=value, explains=explains, remaining=remaining)
            found.append(cause.model_copy(update={"gain": gain, "gain_low": low, "gain_high": high}))
        mean, theirs = float(reference[finite].mean()), float(engine[finite].mean())
        if mean < -np.log(vocabulary) and theirs > mean + _MEANINGLESS:
            forced = True
            found.append(Cause(cause="tokens", value=mean, explains="all"))
        if (way := causes.masked(engine, reference)) is not None:
            written, same = way
            forced = True
            remaining = units.ratio(e, b, finite & ~same)
            found.append(Cause(cause="masked", value=written, explains=causes.explained(remaining), remaining=remaining))
        size = units.ratio(e, b, finite)
        if size.high is not None and size.high < _LESS:
            alike = [
                (name, each)
                for name, d in deviations.items()
                if name != "bf16" and np.isfinite(d[finite]).all()
                for each in [units.ratio(e, d, finite)]
                if each.low is not None and each.high is not None and each.low > 1 / BAND and each.high < BAND
            ]
            found += [
                Cause(cause="higher_precision", value=name, explains="all", remaining=each, told_apart=len(alike) == 1)
                for name, each in alike
            ]
        return forced, found

    def _routing(self, e: Floats, b: Floats, base: EngineRun, runs: list[EngineRun], units: Units) -> list[Cause]:
        """Return routing or other weights as the cause, or both."""
        apart = [each for run in runs if (each := run.rerouted(base)) is not None and each.mean() <= routing.FRAGILE]
        if not apart:
            return routing.told_apart(e, b, None, units)
        fragile = _by_sequence(np.any(apart, 0).astype(float), self.rows)
        before = self._over([np.cumsum(each) for each in fragile])
        return routing.told_apart(e, b, before, units)

    def _pair(self, engine: Floats, b: Floats, units: Units) -> RunDifference:
        """Compare with the other run. Raises InvalidData if it has other tokens."""
        if [each.token_ids or each.tokens for each in self.against] != [each.token_ids or each.tokens for each in self.sequences]:
            raise InvalidData("The two runs have different tokens: give both the same sequences, in the same order.")
        other = self._over(given_log_p(self.against))
        with np.errstate(invalid="ignore"):  # minus infinity in both
            d = np.where(np.isnan(other), np.nan, engine) - other
        known, forbidden = np.isfinite(d), int(np.isinf(d).sum())
        if not known.any():
            raise InvalidData("No token has a log-probability in both runs.")
        size = units.ratio(d, b, known)
        return RunDifference(
            tokens=int(known.sum()),
            forbidden=forbidden,
            difference=comparison.difference(d[known]),
            ratio=size,
            band=PAIR_BAND,
            verdict=comparison.verdict(size, forbidden > 0, PAIR_BAND),
        )

    def _token(self, at: int, engine: Floats, reference: Floats, b: Floats) -> TokenDifference:
        index, position = self._at[at]
        token = self.rows[index][position]
        value = float(engine[at])
        return TokenDifference(
            sequence=index,
            position=position,
            token=token,
            text=self._text(token),
            engine=value if np.isfinite(value) else None,
            reference=float(reference[at]),
            bf16=float(reference[at] + b[at]),
        )

    @cached_property
    def _texts(self) -> dict[int, str]:
        return {}

    def _text(self, token: int) -> str:
        """Return the text of a token, "" without a tokenizer and for a part of a character."""
        if token not in self._texts:
            try:
                text = self.opened.tokenizer.decode([token])
            except MantissaError:
                text = ""
            self._texts[token] = "" if "\N{REPLACEMENT CHARACTER}" in text else text
        return self._texts[token]


def _by_sequence(values: Floats, rows: Rows) -> list[Floats]:
    return np.split(values, np.cumsum([len(row) - 1 for row in rows])[:-1])
