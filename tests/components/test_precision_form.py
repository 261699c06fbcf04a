"""The precision page's form, link and command: the state of the page as text."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import InvalidData, InvalidReference, InvalidRequest, MantissaError
from analyzers.precision_variants import PrecisionReport, PrecisionRequest
from analyzers.precision_variants.command import add_options
from analyzers.precision_variants.variants import DEFAULT
from components.forms.form import DATASET, LINKED_CHARACTERS, as_read
from components.precision import form
from components.precision.form import COST, ENGINE, RANDOM, TEXT, TOO_LARGE, command, permalink, request
from components.precision.page import PAGE
from components.running import zero_gpu
from components.running.jobs import job
from tests.components.dtype_reports import COMMIT, of_model
from tests.components.model_forms import asks_or_explains, parsed, query_of
from tests.components.precision_reports import precision_report
from tests.hub import LocalHub
from tests.language_models.repositories import WEIGHTS, files, parts_of

MODEL = "sample:tiny-bf16"
OWN = "mine: dtype=bf16, fp32=residual+norms\n\n  other:dtype=fp16,attention=eager  \n"


def _asked(report: PrecisionReport, **changes: Any) -> PrecisionReport:
    """``report`` as if something else had been asked for."""
    asked = PrecisionRequest.model_validate(report.request.model_dump() | changes)
    inputs = report.inputs.model_copy(update={"source": asked.data, "commit": COMMIT})
    return report.model_copy(update={"request": asked, "inputs": inputs})


def _again(link: str) -> PrecisionRequest:
    return request(form.filled(query_of(link)))


def test_every_field_reaches_the_request() -> None:
    asked = {
        "model": " org/name@main ", "variants": ["bf16"], "own": OWN, "data": DATASET, "sequences": " 2 ", "sequence_length": "64",
        "text": "not read", "dataset": "org/data", "loss": "gspo", "random_init": RANDOM, "pre_rounded": True, "inside": True,
        "attention": "eager", "advantages": "1, -0.5", "old_logprobs": "[-1, -2.5]\n[-3]", "clip_low": "10%", "clip_high": "0.3",
        "seed": "7",
    }  # fmt: skip
    assert request(asked) == PrecisionRequest(
        model="org/name@main", variants=("bf16", "mine: dtype=bf16, fp32=residual+norms", "other:dtype=fp16,attention=eager"),
        data="org/data", sequences=2, sequence_length=64, loss="gspo", advantages=(1.0, -0.5), random_init=True, pre_rounded=True,
        old_logprobs=((-1.0, -2.5), (-3.0,)), clip_low=0.1, clip_high=0.3,
        inside=True, attention="eager", seed=7,
    )  # fmt: skip
    assert request({"model": MODEL, "data": TEXT, "text": " a b "}).text == " a b "
    assert request({"model": MODEL, "data": RANDOM}).data == "random"
    ignored = request({"model": MODEL, "advantages": "1", "old_logprobs": "x", "clip_low": "y"})
    assert ignored == PrecisionRequest(model=MODEL)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "a/b, c/d"},
        {"own": "<img src=x>: dtype=bf16"},
        {"own": "x" * 100_000},
        {"own": "\n".join(f"m{i}: dtype=bf16" for i in range(limits.PRECISION_VARIANTS))},
        {"sequences": "many"},
        {"data": TEXT, "text": "x" * (limits.PRECISION_CHARACTERS + 1)},
        {"data": ENGINE, "logprobs": TOO_LARGE.format(4)},
        {"loss": "grpo", "old_logprobs": "-1, -2"},
    ],
)
def test_bad_fields_are_one_sentence(fields: dict[str, Any]) -> None:
    with pytest.raises(MantissaError) as caught:
        request({"model": MODEL} | fields)
    assert str(caught.value).endswith(".") and len(str(caught.value)) < 700


_KEYS = ("model", "variants", "variant", "data", "text", "sequences", "advantages", "loss", "inside", "old_logprobs", "clip_low", "theme")


@given(st.lists(st.tuples(st.sampled_from(_KEYS), st.text(max_size=900))))
def test_any_query_is_a_form_and_then_a_request_or_one_error(query: list[tuple[str, str]]) -> None:
    assert asks_or_explains(form, query, PrecisionRequest)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"variants": DEFAULT, "sequences": 4, "sequence_length": 512},
        {"variants": ("mine: dtype=bf16, fp32=residual+norms",), "loss": "gspo", "advantages": (-1.0, 0.1), "seed": 3},
        {"variants": ("fp16", "mine: dtype=fp16"), "data": "random", "random_init": True, "pre_rounded": True, "inside": True},
        {"loss": "grpo", "old_logprobs": ((-1.5, -1e-05), (-2.0,)), "sequence_length": 3, "clip_low": 0.1, "clip_high": 1e6},
        {"data": f"org/data@{COMMIT}", "attention": "eager"},
        {"text": "Some text & more?\nYes."},
    ],
)
def test_a_permalink_and_a_command_lead_back_to_the_same_request(changes: dict[str, Any]) -> None:
    report = _asked(of_model("org/name", precision_report()), **changes)
    if "@" in report.request.data:
        report = report.model_copy(update={"inputs": report.inputs.model_copy(update={"source": "org/data"})})
    pinned = report.request.model_copy(update={"model": f"org/name@{COMMIT}"})
    assert _again(permalink(as_read(report))) == pinned
    given_options = parsed(command(as_read(report)), "precision", add_options)
    options = {name: value for name, value in given_options.items() if name in PrecisionRequest.model_fields}
    presets = given_options["variants"].split(",") if "variants" in given_options else []
    named = (*presets, *given_options["variant"])
    options["variants"] = named or DEFAULT
    if "advantages" in options:
        options["advantages"] = tuple(map(float, options["advantages"].split(",")))
    if report.request.old_logprobs:
        assert options.pop("old_logprobs") == "old-logprobs.jsonl"
        options["old_logprobs"] = report.request.old_logprobs
    if report.request.text is not None:
        assert options.pop("data") == "text.txt"
        options["text"] = report.request.text
    assert PrecisionRequest(**options) == pinned


def test_a_text_that_is_too_long_for_a_link_is_left_out_and_asked_for_again() -> None:
    link = permalink(as_read(_asked(precision_report(), text="a" * (LINKED_CHARACTERS + 1), variants=DEFAULT)))
    assert len(link) < 100
    query = query_of(link)
    assert form.filled(query)["data"] == TEXT
    assert "paste it again" in (PAGE.prefill(query).status or "")


def test_a_local_file_is_refused_before_it_is_looked_for() -> None:
    with pytest.raises(InvalidReference, match="command line only"):
        list(job(request({"model": MODEL, "data": DATASET, "dataset": "/etc/shadow.txt"})))


def _lend(request: Any, seconds: int, access: Access, folder: str) -> Iterator[Any]:
    yield request.device, seconds


def test_a_gpu_is_asked_for_by_variants_and_tokens() -> None:
    one, all_of_them = (request({"model": MODEL, "variants": list(presets)}) for presets in (("bf16",), DEFAULT))
    assert COST.tokens(one) >= 2 * one.sequences * one.sequence_length
    seconds = zero_gpu.gpu_seconds(205_376, 2 * 205_376, COST.tokens(one))
    assert list(zero_gpu._with_gpu(one, Access(), _lend))[-1] == ("cuda", seconds)
    assert COST.tokens(one) < COST.tokens(all_of_them) < COST.tokens(all_of_them.model_copy(update={"pre_rounded": True}))


@pytest.mark.parametrize("weights", ["pretrained", RANDOM])
def test_weights_are_fetched_before_there_is_a_gpu_and_random_ones_not_at_all(hub: LocalHub, weights: str) -> None:
    hub.add("org/tiny", files())
    *_, (device, _) = zero_gpu._with_gpu(request({"model": "org/tiny", "random_init": weights}), Access(), _lend)
    assert device == "cuda"
    assert (len(files()[WEIGHTS]) in parts_of(hub, WEIGHTS)) == (weights == "pretrained")


def test_an_engines_log_probabilities_are_pasted_and_never_linked() -> None:
    lines = '{"token_ids": [1, 2, 3], "logprobs": [null, -0.5, -1.25]}'
    made = form.request({"model": "sample:tiny-bf16", "data": form.ENGINE, "logprobs": lines})
    assert made.logprobs[0].token_ids == (1, 2, 3) and made.logprobs[0].logprobs == (None, -0.5, -1.25)
    assert "logprobs=&" in f"{form.permalink(made)}&" and "1.25" not in form.permalink(made)
    assert "--logprobs=logprobs.jsonl" in form.command(made)
    assert form.filled([("model", "sample:tiny-bf16"), ("logprobs", "")])["data"] == form.ENGINE
    for typed, sentence in (("", "Choose or paste a file"), ("{", "Line 1 of the engine's log-probabilities is not JSON")):
        with pytest.raises(InvalidRequest if not typed else InvalidData, match=sentence):
            form.request({"model": "sample:tiny-bf16", "data": form.ENGINE, "logprobs": typed})
    assert not form.request({"model": "sample:tiny-bf16", "logprobs": lines}).logprobs
