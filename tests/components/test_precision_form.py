"""The precision page's form, link and command: the state of the page as text; and the same as arguments of the endpoint."""

from collections.abc import Iterator
from inspect import signature
from typing import Any

import gradio as gr
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers import ANALYZERS
from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import InvalidData, InvalidReference, InvalidRequest, LimitExceeded, MantissaError
from analyzers.precision_variants import PrecisionReport, PrecisionRequest
from analyzers.precision_variants.command import add_options
from analyzers.precision_variants.variants import DEFAULT
from components.api.endpoints import endpoint
from components.forms.form import DATASET, LINKED_CHARACTERS, as_read
from components.precision import form
from components.precision.form import COST, ENGINE, RANDOM, TEXT, TOO_LARGE, command, permalink, request
from components.precision.page import EXAMPLES, PAGE
from components.running import jobs, zero_gpu
from components.running.jobs import job
from tests.components.dtype_reports import COMMIT, of_model
from tests.components.model_forms import asks_or_explains, parsed, query_of, skips_all_but_the_model
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


def test_an_empty_form_asks_for_the_defaults() -> None:
    assert request({"model": MODEL}) == PrecisionRequest(model=MODEL)


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
    ("fields", "said"),
    [
        ({"model": " "}, "Type or paste a model id"),
        ({"model": "a/b, c/d"}, "^One model at a time: name one"),
        ({"variants": ()}, "Tick at least one variant"),
        ({"variants": ("bf61",)}, "^There is no variant 'bf61' .did you mean bf16"),
        ({"variants": ("bf16", "bf16")}, "two variants named bf16"),
        ({"own": "mine: dtipe=bf16"}, "no setting 'dtipe' .did you mean dtype"),
        ({"own": "mine: fp32=residuum, dtype=bf16"}, "did you mean residual"),
        ({"own": "<img src=x>: dtype=bf16"}, "letters, digits"),
        ({"own": "x" * 100_000}, "characters are more than"),
        ({"own": "\n".join(f"m{i}: dtype=bf16" for i in range(limits.PRECISION_VARIANTS))}, "24 variants can be run at once"),
        ({"sequences": "0"}, "^Sequences must be at least 1, not '?0"),
        ({"sequences": "many"}, "Sequences must be a whole number, not 'many'"),
        ({"sequence_length": "9999999"}, "^Sequence length must be at most 8,192"),
        ({"sequence_length": "1e3"}, "Sequence length must be a whole number"),
        ({"data": TEXT}, "Paste a text"),
        ({"data": TEXT, "text": "x" * (limits.PRECISION_CHARACTERS + 1)}, "at most 1000000|at most 1,000,000"),
        ({"data": DATASET}, "id of a dataset"),
        ({"data": ENGINE, "logprobs": TOO_LARGE.format(4)}, "^This file has more than 4 MB: use the command line.$"),
        ({"loss": "evil"}, "'ce', 'gspo' or 'grpo'"),
        ({"loss": "gspo", "advantages": "one"}, "numbers separated by commas, not 'one'"),
        ({"loss": "gspo", "advantages": "1,2,3"}, "there are 2 and 3"),
        ({"loss": "grpo", "old_logprobs": "-1, -2"}, "^Line 1 of old log-probabilities is not a JSON list"),
        ({"loss": "grpo", "old_logprobs": "[-1]"}, "there are 2 and 1 lists"),
        ({"loss": "grpo", "clip_low": "low"}, "Clip low must be a number"),
        ({"loss": "grpo", "clip_high": "-1"}, "^Clip high must be at least 0"),
        ({"attention": "flash"}, "'sdpa' or 'eager'"),
        ({"seed": "-1"}, "at least 0"),
    ],
)
def test_bad_fields_are_one_sentence(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(MantissaError, match=said) as caught:
        request({"model": MODEL} | fields)
    assert str(caught.value).endswith(".") and len(str(caught.value)) < 700


_KEYS = (
    "model",
    "variants",
    "variant",
    "data",
    "text",
    "sequences",
    "advantages",
    "loss",
    "inside",
    "old_logprobs",
    "clip_low",
    "random_init",
    "theme",
)


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


def test_the_default_link_is_short() -> None:
    report = _asked(precision_report(), variants=DEFAULT, sequence_length=512)
    assert permalink(as_read(report)) == "?model=sample%3Atiny-bf16"
    assert command(as_read(report)) == "mantissa precision sample:tiny-bf16"


def test_a_text_that_is_too_long_for_a_link_is_left_out_and_asked_for_again() -> None:
    link = permalink(as_read(_asked(precision_report(), text="a" * (LINKED_CHARACTERS + 1), variants=DEFAULT)))
    assert len(link) < 100
    query = query_of(link)
    assert form.filled(query)["data"] == TEXT
    assert "paste it again" in (PAGE.prefill(query).status or "")


def test_old_log_probabilities_too_long_for_a_link_are_asked_for_again() -> None:
    rows = tuple((-1.0,) * 511 for _ in range(2))
    link = permalink(as_read(_asked(precision_report(), loss="gspo", old_logprobs=rows, sequence_length=512)))
    assert len(link) < 200
    with pytest.raises(MantissaError, match="paste them into the options again"):
        _again(link)
    assert "paste them" in (PAGE.prefill(query_of(link)).status or "")


def test_an_address_fills_the_fields_or_says_why_not() -> None:
    refused = PAGE.prefill([("model", MODEL), ("variants", "bf16,fp61")])
    assert skips_all_but_the_model(refused, MODEL, "did you mean fp16")
    assert PAGE.prefill([("sequences", "5")])[1:] == (None, ())
    filled = PAGE.prefill([("model", MODEL), ("variants", "bf16"), ("variant", "mine: dtype=bf16"), ("inside", "1")])
    assert filled == ({"model": MODEL, "variants": ["bf16"], "more": [], "order": "", "own": "mine: dtype=bf16", "inside": True}, "", None)
    folded = PAGE.prefill([("model", MODEL), ("variants", "fp16_autocast,bf16,tf32")])
    assert folded.form == {
        "model": MODEL,
        "variants": ["bf16"],
        "more": ["fp16_autocast", "tf32"],
        "order": "fp16_autocast,bf16,tf32",
        "own": "",
    }
    assert request(folded.form).variants == ("fp16_autocast", "bf16", "tf32")


def test_every_example_is_a_valid_request() -> None:
    for asked in EXAMPLES.values():
        assert isinstance(request(asked), PrecisionRequest)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "model is missing"),
        ({"model": ["a"]}, "Model must be text."),
        ({"model": MODEL, "variants": "bf16"}, "Variants must be a list"),
        ({"model": MODEL, "variants": [1]}, "Entry 1 of variants must be text, not 1."),
        ({"model": MODEL, "variants": []}, "From 1 to"),
        ({"model": MODEL, "variants": ["a: dtype=bf16\nb: dtype=bf16"]}, "dtype cannot be"),
        ({"model": MODEL, "variants": ["bf61"]}, "did you mean bf16"),
        ({"model": MODEL, "sequences": 2.5}, "Sequences must be a whole number, not 2.5."),
        ({"model": MODEL, "inside": "no"}, "Inside must be true or false"),
        ({"model": MODEL, "loss": "gspo", "advantages": "1"}, "Advantages must be a list"),
        ({"model": MODEL, "loss": "gspo", "advantages": ["x"] * 2}, "Entry 1 of advantages must be a number"),
        ({"model": MODEL, "data": "random", "text": "a"}, "Give either a text or the name of data"),
        ({"model": MODEL, "data": "./text.txt"}, "command line only"),
        ({"model": MODEL, "loss": "grpo", "old_logprobs": "[-1]"}, "Old_logprobs must be a list"),
        ({"model": MODEL, "loss": "grpo", "old_logprobs": [-1.0]}, "Entry 1 of old_logprobs must be a list"),
        ({"model": MODEL, "loss": "grpo", "old_logprobs": [["a"], [-1.0]]}, "Entry 1 of entry 1 of old_logprobs must be a number"),
        ({"model": MODEL, "loss": "grpo", "old_logprobs": [[-1.0], [-1.0]], "sequences": 2, "sequence_length": 8}, "2 lists of 7"),
        ({"model": MODEL, "loss": "grpo", "clip_low": 2}, "at most 1"),
        ({"model": "/etc/passwd"}, "command line"),
        ({"model": MODEL, "sequence_length": 4096}, "choose a shorter sequence length"),
    ],
)
def test_what_can_be_no_run_is_one_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(gr.Error, match=said):
        list(endpoint(ANALYZERS["precision"])(**arguments))


def test_the_endpoint_and_the_request_have_the_same_defaults() -> None:
    for name, parameter in signature(endpoint(ANALYZERS["precision"])).parameters.items():
        if name not in ("model", "advantages", "old_logprobs", "logprobs", "variants"):
            assert parameter.default == PrecisionRequest.model_fields[name].default


def test_the_endpoint_gives_progress_and_then_the_report() -> None:
    variants = ["bf16", "mine: dtype=bf16, fp32=residual"]
    items = list(
        endpoint(ANALYZERS["precision"])(MODEL, variants, text="one two three four five", sequences=1.0, sequence_length=8)
    )  # JSON has no integers
    assert all("done" in item for item in items[:-1])
    found = PrecisionReport.model_validate(items[-1])
    assert list(found.variants) == ["bf16", "mine"]
    assert (found.inputs.source, found.inputs.length) == ("text", 8)
    policy: dict[str, Any] = {"loss": "grpo", "advantages": [1.0], "old_logprobs": [[-1.0, -2, -1e-05]], "clip_low": 0.1, "clip_high": 0.28}
    *_, last = endpoint(ANALYZERS["precision"])(MODEL, ["bf16"], data="random", sequences=1, sequence_length=4, **policy)
    found = PrecisionReport.model_validate(last)
    assert found.request.old_logprobs == ((-1.0, -2.0, -1e-05),) and found.inputs.clip == (0.1, 0.28)


def test_a_local_file_is_refused_before_it_is_looked_for() -> None:
    with pytest.raises(InvalidReference, match="command line only"):
        list(job(request({"model": MODEL, "data": DATASET, "dataset": "/etc/shadow.txt"})))


def test_more_than_the_page_runs_is_refused_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request({"model": MODEL, "sequences": "1", "sequence_length": "8"})
    monkeypatch.setattr(limits, "WEB_MODEL_WORK", 1_000_000)
    said = r"48 tokens .* through 205,376 parameters are more .*MANTISSA_WEB_MODEL_WORK.*fewer variants"
    with pytest.raises(LimitExceeded, match=said):
        list(job(asked))
    monkeypatch.setattr(limits, "JOB_SECONDS", 0)
    with pytest.raises(LimitExceeded, match="fewer variants, fewer or shorter sequences, a smaller model or the command line"):
        list(jobs.job(asked))


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


def test_a_link_without_the_engine_s_file_opens_the_form_that_takes_it() -> None:
    typed, status, only = PAGE.prefill([("model", MODEL), ("logprobs", ""), ("variants", "bf16")])
    assert typed["data"] == form.ENGINE and typed["variants"] == ["bf16"]
    assert "choose their file again" in (status or "") and not only
