"""The endpoint for programs, called as programs do: with gradio's own client over HTTP."""

import json
import re
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from analyzers.dtype_detection import DtypeReport
from analyzers.update_sparsity import SparsityReport
from tests.browser.conftest import NOWHERE, ROOT, program, serve

CANARY = "hf_" + "canaryCANARY" * 3


@pytest.fixture(scope="module")
def client(offline: str) -> Client:
    """A client of an app that cannot reach the Hub."""
    return program(offline, headers={"Cookie": "mantissa=tests"})


def _described(client: Client, endpoint: str) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = client.view_api(return_format="dict")["named_endpoints"][endpoint]["parameters"]
    return parameters


def test_a_parameter_without_a_default_is_required(client: Client, offline: str) -> None:
    for endpoint, required in (
        ("dtype", ["model"]),
        ("dtype_summary", ["model"]),
        ("sparsity", ["base", "tuned"]),
        ("consensus", ["model"]),
    ):
        assert [each["parameter_name"] for each in _described(client, f"/{endpoint}") if not each["parameter_has_default"]] == required
        said = f'{{"detail":"{required[0]} is missing: /gradio_api/info describes every parameter."}}'
        assert _status(f"{offline}/gradio_api/call/v2/{endpoint}", {}) == (422, said.encode())


def test_what_info_says_of_an_endpoint_has_words(client: Client) -> None:
    for endpoint in client.view_api(return_format="dict")["named_endpoints"].values():
        said = [each["label"] for each in endpoint["parameters"] + endpoint["returns"]]
        assert not any(re.fullmatch(r"\d+(st|nd|rd|th)|API", label) for label in said)


def test_dtype_returns_the_report_of_a_sample(client: Client) -> None:
    report = DtypeReport.model_validate(client.predict(model="sample:tiny-bf16-as-fp32", api_name="/dtype"))
    assert report.lineage.verdict == "upcast-from-bf16"
    assert report.checkpoint.ref == "sample:tiny-bf16-as-fp32"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": "/etc/passwd"}, "command line"),
        ({"model": "./README.md"}, "command line"),
        ({"model": "no such model"}, "is not a model id"),
        ({"model": None}, "model is missing"),
        ({"model": ["sample:tiny-bf16"]}, "Model must be text"),
        ({"model": "sample:tiny-bf16", "budget": "-1"}, "budget"),
        ({"model": "sample:tiny-bf16", "include": "("}, "regular expression"),
    ],
)
def test_bad_arguments_get_one_sentence(client: Client, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(AppError, match=said) as caught:
        client.predict(**arguments, api_name="/dtype")
    assert "Traceback" not in str(caught.value)


@pytest.mark.exhaustive
def test_the_block_of_the_documentation_runs(offline: str) -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page.split("## Over the network")[1], re.DOTALL | re.MULTILINE)
    assert "http://127.0.0.1:7860" in block
    names: dict[str, Any] = {}
    exec(block.replace("http://127.0.0.1:7860", offline), names)
    assert names["report"]["checkpoint"]["ref"] == "sample:tiny-bf16"


def test_the_endpoints_have_typed_names(client: Client) -> None:
    for name, first in (("/dtype", "model"), ("/dtype_many", "models")):
        parameters = {each["parameter_name"]: each["python_type"]["type"] for each in _described(client, name)}
        assert list(parameters) == [first, "mode", "budget", "include", "exclude", "subfolder", "seed", "quantize"]
        assert parameters["seed"] == "int"
        assert "quick" in parameters["mode"]
        assert "exact" in parameters["mode"]


def test_sparsity_returns_the_report_of_a_pair_and_one_sentence_for_what_is_none(client: Client) -> None:
    found = client.predict(base="sample:tiny-bf16", tuned=["sample:tiny-tuned"], mode="exact", api_name="/sparsity")
    report = SparsityReport.model_validate(found)
    assert report.num_changed + report.num_unchanged == report.total_parameters == 205_376
    parameters = {each["parameter_name"]: each["python_type"]["type"] for each in _described(client, "/sparsity")}
    options = ["mode", "budget", "include", "exclude", "subfolder", "seed", "eta", "spectral"]
    assert list(parameters) == ["base", "tuned", *options]
    assert (parameters["eta"], parameters["spectral"]) == ("float", "bool")
    with pytest.raises(AppError, match="Eta must lie between 0 and 1"):
        client.predict(base="sample:tiny-bf16", tuned=["sample:tiny-tuned"], eta=1.5, api_name="/sparsity")


def test_dtype_many_returns_a_report_or_a_sentence_each(client: Client) -> None:
    found = client.predict(models=["sample:tiny-fp32", "no!such", "sample:tiny-bf16"], include="mlp", api_name="/dtype_many")
    assert DtypeReport.model_validate(found[0]).selected_tensors == 12
    assert found[1]["model"] == "no!such"
    assert "not a model id" in found[1]["error"]
    assert found[2]["checkpoint"]["ref"] == "sample:tiny-bf16"


def test_the_library_is_read_by_name(client: Client) -> None:
    found = client.predict(text="pythia", sort="model", descending=False, api_name="/find_models")
    names = [row["model"] for row in found["rows"]]
    assert names == sorted(names)
    assert "EleutherAI/pythia-1b" in names
    assert {"total", "page", "pages"} < set(found)
    said = client.predict(model="EleutherAI/pythia-1b", api_name="/consensus")
    assert said["precision"] == found["rows"][names.index("EleutherAI/pythia-1b")]["precision"]
    assert said["labels"][0]["label"]["evidence_quote"]
    labels = client.predict(model="eleutherai/PYTHIA-1b", api_name="/find_labels")
    assert [row["label"]["id"] for row in labels["rows"]] == [row["label"]["id"] for row in said["labels"]]


def test_a_report_is_stored_and_read_back_as_it_was(client: Client) -> None:
    report = client.predict(model="sample:tiny-bf16", include="mlp", api_name="/dtype")
    assert client.predict(model="sample:tiny-bf16", include="mlp", api_name="/dtype") == report
    assert client.predict(id=report["id"], api_name="/stored_result") == report
    rows = client.predict(analyzer="dtype", api_name="/find_results")["rows"]
    assert report["id"] in [row["result"]["id"] for row in rows]


@pytest.mark.parametrize(
    ("endpoint", "arguments", "said"),
    [
        ("/find_labels", {"sort": "evil; DROP TABLE labels"}, "can be sorted by"),
        ("/find_models", {"page": 0}, "Page must be at least 1"),
        ("/find_models", {"page": "x"}, "whole number"),
        ("/find_models", {"page": 10**9}, "Page must be at most 1,000,000"),
        ("/find_results", {"text": ["a"]}, "Text must be text"),
        ("/find_models", {"disputed": "yes"}, "true or false"),
        ("/consensus", {"model": {}}, "must be text"),
        ("/consensus", {"model": ""}, "No model was named"),
        ("/consensus", {"model": "<script>alert(1)</script>"}, "is not a model id|too many"),
        ("/consensus", {"model": "org/name@main"}, "leave out the revision"),
        ("/stored_result", {"id": "../../etc/passwd"}, "no stored result"),
        ("/add_label", {"model": "org/name", "precision": "bf16"}, "A label needs evidence"),
        ("/add_label", {"model": "/etc/passwd", "precision": "bf16", "evidence": "x"}, "command line only"),
        ("/add_label", {"model": "org/name", "precision": "evil", "evidence": "https://a.org/b"}, "precision must be"),
        (
            "/add_label",
            {"model": "org/name", "precision": "bf16", "evidence": "https://user:pw@example.org"},
            "user|password|is no address",
        ),
        ("/add_label", {"model": "org/name", "precision": "bf16", "quote": "x" * 100_000}, "characters"),
        ("/flag_label", {"label": "x", "reason": "because"}, "reason|label"),
    ],
)
def test_what_the_library_cannot_answer_is_one_sentence(client: Client, endpoint: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(AppError, match=said) as caught:
        client.predict(**arguments, api_name=endpoint)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["dtype", "consensus", "exit"])
def test_too_few_values_are_counted(client: Client, offline: str, endpoint: str) -> None:
    needed = len(_described(client, f"/{endpoint}"))
    are = "is" if needed == 1 else "are"
    for way in ("call", "run"):
        status, said = _status(f"{offline}/gradio_api/{way}/{endpoint}", {"data": []})
        assert status == 422
        assert f"{needed} value{'s' * (needed > 1)} {are} needed here, one for each parameter, and 0 came." in said.decode()


@pytest.mark.parametrize("values", [["sample:tiny-bf16"], ["sample:tiny-bf16", "quick", 64_000_000, None]])
def test_missing_last_values_are_their_defaults(client: Client, offline: str, values: list[Any]) -> None:
    """A script may send what an earlier version asked for."""
    url = f"{offline}/gradio_api/call/dtype"
    event = json.loads(_sent(url, {"data": values}))["event_id"]
    with urllib.request.urlopen(f"{url}/{event}", timeout=120) as answer:
        report = json.loads(answer.read().decode().rsplit("data: ", 1)[1])[0]
    assert report["id"] == client.predict("sample:tiny-bf16", api_name="/dtype")["id"]


@pytest.mark.parametrize("endpoint", ["dtype", "consensus", "conflict"])
@pytest.mark.parametrize("path", ["/etc/passwd", "https://example.org/x", "sample"])
def test_what_is_meant_to_be_a_file_is_refused(client: Client, offline: str, endpoint: str, path: str) -> None:
    values: list[Any] = [None] * len(_described(client, f"/{endpoint}"))
    values[0] = {"path": path, "meta": {"_type": "gradio.FileData"}}
    url = f"{offline}/gradio_api/call/{endpoint}"
    event = json.loads(_sent(url, {"data": values}))["event_id"]
    with urllib.request.urlopen(f"{url}/{event}", timeout=120) as answer:
        said = answer.read().decode()
    assert re.search("This call failed: check its values|must be text", said) and path not in said and "Traceback" not in said


NO_ENDPOINT = (404, b'{"detail":"There is no such endpoint: /gradio_api/info lists them."}')


def test_an_endpoint_that_is_not_there(offline: str) -> None:
    for name in ("nothing", "dtype%00", "..%2f..%2fetc", "v2/nothing"):
        assert _status(f"{offline}/gradio_api/call/{name}", {"data": []}) in (NO_ENDPOINT, (404, b'{"detail":"Not Found"}'))
    for number in (-1, 99_999, 10**30):
        call = {"fn_index": number, "data": [CANARY], "session_hash": CANARY}
        for path in ("queue/join", "run/predict", "run/dtype", "api/predict/"):
            assert _status(f"{offline}/gradio_api/{path}", call) == NO_ENDPOINT


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("call/dtype", CANARY.encode()),
        ("call/dtype", b"[" * 100_000),
        ("call/dtype", [CANARY]),
        ("call/dtype", b'{"data": "\\ud800"}'),
        ("call/dtype", b'{"data": {"a": 1e400}}'),
        ("call/dtype", {"data": CANARY}),
        ("call/dtype", {"data": {"model": CANARY}}),
        ("call/dtype", {"data": ["sample:tiny-bf16"] * 8, "session_hash": [CANARY]}),
        ("queue/join", {"data": [CANARY]}),
        ("queue/join", {"fn_index": CANARY, "data": []}),
        ("queue/join", {"fn_index": True, "data": []}),
        ("queue/join", b'{"fn_index": 1e400, "data": [], "session_hash": "x"}'),
        ("run/predict", b'{"fn_index": NaN, "data": []}'),
        ("call/v2/dtype", {"model": "sample:tiny-bf16", CANARY: CANARY}),
        ("cancel", {"session_hash": CANARY}),
        ("reset", {"event_id": [CANARY]}),
    ],
)
def test_what_is_no_call_gets_a_sentence_that_repeats_nothing(offline: str, path: str, body: object) -> None:
    status, said = _status(f"{offline}/gradio_api/{path}", body)
    assert status == 422 and said.endswith(b'."}') and b"/gradio_api/info" in said and CANARY.encode() not in said


@pytest.mark.parametrize("path", [f"queue/data?session_hash={CANARY}x", f"call/dtype/{CANARY}", f"call/v2/dtype/{CANARY}"])
def test_a_session_or_call_that_is_not_there(offline: str, path: str) -> None:
    with pytest.raises(HTTPError) as caught:
        urllib.request.urlopen(f"{offline}/gradio_api/{path}", timeout=120)
    with caught.value as answer:
        assert (answer.code, b"There is no such session or call here" in answer.read()) == (404, True)


def test_fields_by_name(offline: str) -> None:
    status, queued = _status(f"{offline}/gradio_api/call/v2/consensus", {"model": "EleutherAI/pythia-1b"})
    assert status == 200
    _answered(f"{offline}/gradio_api/call/v2/consensus", queued)


@pytest.mark.exhaustive
def test_a_full_queue_of_one_kind_leaves_room_in_the_others(tmp_path: Path) -> None:
    with serve(tmp_path, NOWHERE, MANTISSA_QUEUE="3") as url:
        asked = program(url)
        described = _described(asked, "/conflict")
        seed = [each["parameter_name"] for each in described].index("seed")
        data = {"data": [each.get("parameter_default") for each in described]}
        data["data"][0] = "sample:tiny-fp32"
        _answered(f"{url}/gradio_api/call/conflict", _status(f"{url}/gradio_api/call/conflict", data)[1])  # torch is loaded now
        with ThreadPoolExecutor(40) as readers:
            calls: list[tuple[int, bytes]] = []
            while len(calls) < 40 and (not calls or calls[-1][0] == 200):
                data["data"][seed] = 1 + len(calls)  # no two the same, or the second would be a stored result
                calls.append(_status(f"{url}/gradio_api/call/conflict", data))
                readers.submit(_answered, f"{url}/gradio_api/call/conflict", calls[-1][1])
                time.sleep(0.1)
            assert {status for status, _ in calls} == {200, 503}
            assert calls[-1][1] == b'{"detail":"Too many calls are waiting already: try again later."}'
            assert asked.predict(model="sample:tiny-bf16", api_name="/consensus") is not None
            assert asked.predict(model="sample:tiny-bf16", api_name="/dtype")["checkpoint"]["ref"] == "sample:tiny-bf16"
        assert _status(f"{url}/gradio_api/call/conflict", data)[0] == 200  # there is room again


def _sent(url: str, body: object) -> bytes:
    """Send what may be no call at all, as a program with a token does, and return what is answered; an empty answer to what is refused."""
    status, answer = _status(url, body)
    return answer if status == 200 else b""


def _status(url: str, body: object) -> tuple[int, bytes]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {CANARY}"}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, content, headers), timeout=120) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


def _answered(url: str, queued: bytes) -> None:
    """Wait until the call that this acknowledges is over."""
    event = json.loads(queued or b"{}").get("event_id")
    if event is not None:
        with urllib.request.urlopen(f"{url}/{event}", timeout=120) as answer:
            assert re.search(rb"event: (error|complete)", answer.read())


def test_nothing_of_a_malformed_call_is_in_the_log(offline: str, offline_folder: Path) -> None:
    log = offline_folder / "log"
    before = log.stat().st_size

    def send(data: object) -> None:
        for name in ("consensus", "dtype", "add_label"):
            _sent(f"{offline}/gradio_api/run/{name}", {"data": data})
            _answered(f"{offline}/gradio_api/call/{name}", _sent(f"{offline}/gradio_api/call/{name}", {"data": data}))
        for number in range(50):  # some of the pages' own functions fail at what no page sends
            _sent(f"{offline}/gradio_api/run/predict", {"fn_index": number, "data": data, "session_hash": CANARY})
        for number in (0, 1, 40, 99_999):
            _sent(f"{offline}/gradio_api/queue/join", {"fn_index": number, "data": data, "session_hash": CANARY})

    with ThreadPoolExecutor() as visitors:
        list(visitors.map(send, ([], [CANARY], [CANARY] * 40, [{CANARY: CANARY}] * 4, {"a": CANARY}, CANARY)))
    _sent(f"{offline}/gradio_api/call/dtype", CANARY.encode())
    call = {"name": "consensus", "arguments": {"model": [CANARY], CANARY: CANARY}}
    _sent(f"{offline}/gradio_api/mcp/", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
    with urllib.request.urlopen(f"{offline}/gradio_api/queue/data?session_hash={CANARY}", timeout=120) as answer:
        assert b"close_stream" in answer.read()  # all that joined the queue is over
    logged = log.read_bytes()[before:].decode()
    assert CANARY not in logged and "Traceback" not in logged
    lines = re.split(r"^(?! )", logged, flags=re.MULTILINE)
    unexpected = [line for line in lines if "unexpected " in line]
    assert 0 < len(unexpected) == len(set(unexpected))  # something was malformed: that much is logged, and once
