"""Requests and models that are refused before any work; unusual heads; and memory."""

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load, save

from analyzers.checkpoints import Access
from analyzers.core.errors import (
    InvalidCheckpoint,
    InvalidRequest,
    LimitExceeded,
    MantissaError,
    UnknownArchitecture,
)
from analyzers.core.request import request_error
from analyzers.exit import ExitRequest, analyze
from analyzers.exit.cost import metered, needed_bytes
from analyzers.exit.job import ExitJob
from analyzers.exit.model_head import ModelHead
from analyzers.language_models.load import OpenModel
from tests.exit.sample_reports import MODEL, SMALL, report
from tests.language_models.repositories import WEIGHTS, Files, files, written

WHOLE = ("rank", "rank_exact", "k", "anchors", "seeds", "samples", "sequence_length", "tokens", "seed")
NO_WHOLE_NUMBERS: tuple[Any, ...] = (True, "3", 1.5, float("nan"), float("inf"), [], {})
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def changed(tensors: dict[str, torch.Tensor], **config: Any) -> Files:
    """The files of tiny-fp32 with other tensors, and other values in its config.json."""
    found = files(**config)
    return {**found, WEIGHTS: save(load(found[WEIGHTS]) | tensors, {"format": "pt"})}


def embedding() -> torch.Tensor:
    return load(files()[WEIGHTS])[EMBEDDING]


@pytest.mark.parametrize(
    "asked",
    [
        {"rank": 0},
        {"rank": 10**5000},
        {"rank": 16, "rank_exact": 16},
        {"rank": 1},
        {"topk_by": "size"},
        {"alpha": float("nan")},
        {"mass_threshold": 1.1},
        *({name: bad} for name, bad in zip(cycle(WHOLE), NO_WHOLE_NUMBERS + NO_WHOLE_NUMBERS, strict=False)),
        {"residual": float("inf")},
        {"methods": ("dense", "")},
        {"methods": ()},
        {"methods": ("dense", "dense")},
        {"seeds": 10**6},
        {"data": ""},
    ],
)
def test_requests_that_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        ExitRequest(**{"model": "m", **asked})
    assert isinstance(request_error(caught.value), InvalidRequest)


@pytest.mark.parametrize("asked", [{"rank": 65}, {"k": 513}, {"anchors": 49}])
def test_what_this_model_does_not_have(asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        report(**asked)


@pytest.mark.parametrize(
    ("contents", "error"),
    [
        (files(model_type="bert"), UnknownArchitecture),
        (files(model_type="mamba"), UnknownArchitecture),
        ({**files(without=(WEIGHTS,)), "pytorch_model.bin": b"PK"}, MantissaError),
        (changed({EMBEDDING: torch.full((512, 64), torch.nan)}), InvalidCheckpoint),
        (changed({}, vocab_size=400), InvalidCheckpoint),
    ],
    ids=["bert", "other family", "pickle", "NaN", "misfit"],
)
def test_models_that_cannot_be_measured(tmp_path: Path, contents: Files, error: type[MantissaError]) -> None:
    with pytest.raises(error) as caught:
        report(model=written(tmp_path / "model", contents))
    assert "\n" not in str(caught.value) and str(tmp_path) not in str(caught.value)


def test_a_padded_and_an_untied_head(tmp_path: Path) -> None:
    """Rows beyond the tokenizer's vocabulary are part of the head; a head of its own is taken instead of the embeddings."""
    rows = embedding()
    padded = torch.cat([rows, 0.01 * torch.randn(88, 64, generator=torch.Generator().manual_seed(0))])
    wide = report(model=written(tmp_path / "padded", changed({EMBEDDING: padded}, vocab_size=600)))
    assert (wide.head.vocabulary, wide.head.tokenizer_vocabulary, wide.head.padded, wide.head.tied) == (600, 512, 88, True)
    assert [note.values for note in wide.notes if note.code == "padded-head"] == [{"rows": 88, "tokens": 512}]
    own = changed({HEAD: rows.flip(0).contiguous()}, tie_word_embeddings=False)
    untied = report(model=written(tmp_path / "untied", own))
    assert not untied.head.tied and untied.exact.loss > wide.exact.loss


def test_a_head_that_is_all_zero_leaves_no_nan(tmp_path: Path) -> None:
    """Every logit is 0 and no token has a gradient: nothing to compare, and it is said."""
    found = report(model=written(tmp_path / "zero", changed({HEAD: torch.zeros(512, 64)}, tie_word_embeddings=False)))
    json.loads(found.model_dump_json(), parse_constant=pytest.fail)
    assert found.exact.zero == found.inputs.measured and found.exact.parallel_energy is None
    assert all(method.cosine is None and method.tokens == 0 for method in found.methods.values())
    assert (found.answer.code, found.closest, found.advice.code) == ("no-gradient", None, "other-text")
    assert not found.tables()["methods"].empty


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_models_have_their_head_measured_in_float32(dtype: str) -> None:
    found, exact = report(dtype=dtype), report()
    assert found.dtype == dtype and [note.values for note in found.notes if note.code == "narrow"] == [{"dtype": dtype}]
    for name in ("parallel", "svd", "true_rows", "span"):
        first, second = found.methods[name].cosine, exact.methods[name].cosine
        assert first is not None and second is not None and first.mean == pytest.approx(second.mean, abs=0.03)
    assert found.methods["parallel"].parallel_energy == pytest.approx(1, abs=1e-6)


def test_more_work_than_is_allowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products with the head count too: a sweep is more than the same without."""
    monkeypatch.setattr("analyzers.language_models.load.OpenModel.load", lambda opened: pytest.fail("was loaded"))
    for sweep, largest, error in (
        (False, 10**6, LimitExceeded),
        (False, 2 * 10**8, pytest.fail.Exception),
        (True, 2 * 10**8, LimitExceeded),
    ):
        with pytest.raises(error):
            list(analyze(ExitRequest(model=MODEL, **{**SMALL, "sweep": sweep, "seeds": 8}), Access(), largest=largest))


def test_what_is_needed_is_estimated_from_the_outline() -> None:
    """Everything that measuring allocates beside the model and its run, against what was said before."""
    request = ExitRequest(model=MODEL, **{**SMALL, "tokens": 256, "samples": 12, "sweep": True})
    with OpenModel(MODEL, Access(), dtype="float32") as opened:
        work = ExitJob(request, opened, Access())
        said = needed_bytes(work.head, work.points, work.swept, len(work.positions), narrow=False)
        for _ in opened.fetch():
            pass
        opened.check(work.batch)
        *_, (states, head) = _drained(work.run_model(opened.load()))
        with metered(torch.device("cpu")) as peak:
            _drained(work.compare(head, states))
    assert isinstance(work.head, ModelHead)
    assert 0.2 * said < peak() <= said


def _drained(steps: Any) -> list[Any]:
    """All that a generator yields, and at last what it returns."""
    found = []
    while True:
        try:
            found.append(next(steps))
        except StopIteration as end:
            return [*found, end.value]
