"""A visitor's own token: it opens what the visitor may read, for this job only, and its results leave no trace."""

import asyncio
import multiprocessing
import pickle
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from analyzers.checkpoints import Access
from analyzers.compare import CompareRequest
from analyzers.core.errors import AccessDenied, CheckpointNotFound, HiddenRepository, MantissaError, TokenRefused
from analyzers.core.report import Report
from analyzers.core.request import Request
from analyzers.dtype_detection import DtypeRequest
from analyzers.gradient_conflict import ConflictRequest
from analyzers.language_models.samples import sample_folder
from analyzers.parents import ParentsRequest
from analyzers.update_sparsity import SparsityRequest
from components.dtype.form import request as asked
from components.library import Library, Query
from components.library_page.contributing import canonical
from components.running import analysis_process, jobs
from components.running.async_steps import in_background
from components.running.page_runs import error_status
from components.running.queue_limits import Caller, caller, reading
from components.site.identity import Client, access_of
from tests.hub import LocalHub

CANARY = "hf_" + "canaryCANARY" * 3
CLOSED = ("gated", "private", "pairs")
PAIRS = b'{"instruction": "Count.", "output": "One, two, three."}\n{"instruction": "Spell cat.", "output": "c, a, t."}\n'


@pytest.fixture
def closed(hub: LocalHub) -> LocalHub:
    """A Hub with a public, a gated and a private model and a private dataset; the visitor may read all of them."""
    files = {path.name: path for path in sample_folder("tiny-bf16").iterdir()}
    hub.add("org/name", files)
    hub.add("org/gated", files, gated="manual", info={"cardData": {"license": "llama3.1"}})
    hub.add("org/private", files, private=True)
    hub.add("org/pairs", {"pairs.jsonl": PAIRS}, kind="dataset", private=True)
    hub.user(CANARY, "ann", ["org/gated", "org/private", "org/pairs"])
    return hub


@pytest.fixture
def visitor() -> Iterator[Access]:
    """Whoever calls `job` in this test sent the token."""
    access = Access(token=CANARY)
    with reading("stream"):
        before = caller.set(Caller(Client("ann", "address"), "stream", access))
        yield access
        caller.reset(before)


def _request(headers: dict[str, str]) -> Any:
    return SimpleNamespace(headers={name.lower(): value for name, value in headers.items()})


LOGIN = gr.OAuthToken(token="hf_oauth_" + "x" * 20, scope="openid", expires_at=2**40)


@pytest.mark.parametrize(
    ("headers", "login", "token"),
    [
        ({}, None, None),
        ({}, LOGIN, LOGIN.token),
        ({"Authorization": f"Bearer {CANARY}"}, LOGIN, CANARY),
        ({"Authorization": f"bearer  {CANARY} "}, None, CANARY),
        ({"Authorization": "Bearer eyJhbGciOi.of.a-proxy"}, None, None),  # not the Hub's: it is not for the Hub to see
        ({"Authorization": "Basic aGZfOng="}, None, None),
        ({"Sec-Fetch-Site": "same-origin"}, LOGIN, LOGIN.token),
        ({"Sec-Fetch-Site": "cross-site"}, LOGIN, None),  # the browser adds the session's cookie to what another site sends
        ({"Origin": "https://evil.example", "Host": "here.hf.space"}, LOGIN, None),
        ({"Sec-Fetch-Site": "cross-site", "Authorization": f"Bearer {CANARY}"}, LOGIN, CANARY),
    ],
)
def test_whose_token_reads(headers: dict[str, str], login: gr.OAuthToken | None, token: str | None) -> None:
    assert access_of(_request(headers), login) == Access(token=token)


def _run(request: Request) -> Report:
    *_, last = jobs.job(request)
    assert isinstance(last, Report)
    return last


REQUESTS: dict[str, Request] = {
    "dtype": DtypeRequest(model="org/gated"),
    "private": DtypeRequest(model="org/private"),
    "sparsity": SparsityRequest(base="org/name", tuned=("org/gated",)),
    "compare": CompareRequest(models=("org/name", "org/private")),
    "parents": ParentsRequest(model="org/name", candidates=("org/private",)),
    "conflict": ConflictRequest(model="org/gated", samples=2, max_length=16),
    "private data": ConflictRequest(model="sample:tiny-bf16", data="org/pairs", samples=2, max_length=16),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_what_the_visitor_may_read_is_analyzed_and_not_stored(
    closed: LocalHub,
    library: Library,
    visitor: Access,
    tmp_path: Path,
    name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    commit = closed.commit("org/pairs", {"README.md": b""}, kind="dataset")
    request = REQUESTS[name]
    if name == "private data":  # a commit is not looked up before the run
        request = request.model_copy(update={"data": f"org/pairs@{commit}"})
    made = _run(request)
    assert CANARY not in made.model_dump_json() + caplog.text
    assert library.results(Query()).total == 0
    traces = [
        CANARY.encode(),
        made.id.encode(),
        *PAIRS.splitlines(),
        *(f"org{between}{name}".encode() for between in "/-" for name in CLOSED),
    ]
    weights = next(sample_folder("tiny-bf16").glob("*.safetensors")).read_bytes()[-1000:]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if any(trace in path.read_bytes() for trace in (*traces, weights))]
    assert not [path for path in tmp_path.rglob("*") if any(name in path.name for name in CLOSED)]
    assert {each.token for each in closed.requests if each.authorized} == {CANARY}


def test_a_public_model_is_stored_whoever_asks(closed: LocalHub, library: Library, visitor: Access) -> None:
    _run(DtypeRequest(model="org/name"))
    assert library.results(Query()).total == 1


@pytest.mark.parametrize(
    ("model", "error", "said"),
    [
        ("org/gated", AccessDenied, r"^org/gated is gated: accept its licence \(llama3\.1\) at http\S+/org/gated, then read it with"),
        ("org/private", HiddenRepository, "^org/private was not found on the Hub, or is private: .* your own login or token"),
    ],
)
def test_the_next_visitor_has_no_token(closed: LocalHub, library: Library, model: str, error: type[MantissaError], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        _run(DtypeRequest(model=model))
    assert len(str(caught.value).split(". ")) == 1
    assert not any(each.authorized for each in closed.requests)


def test_a_gated_model_can_be_labelled_and_a_private_one_cannot(closed: LocalHub) -> None:
    assert canonical("org/gated") == "org/gated"
    with pytest.raises(HiddenRepository):
        canonical("org/private")


def test_the_refusal_has_the_login_that_returns_to_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    form, error = partial(asked, {"model": "org/gated", "include": "mlp"}), AccessDenied("org/gated is gated.")
    assert "org/gated is gated." in error_status(error, form) and "<a" not in error_status(error, form)  # nobody can log in here
    monkeypatch.setenv("SYSTEM", "spaces")
    for name in ("SPACE_ID", "OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL"):
        monkeypatch.setenv(name, "x")
    address = "login/huggingface?_target_url=%2F%3Fmodel%3Dorg%252Fgated%26mode%3Dquick%26include%3Dmlp"
    assert f'<a class="m-step" href="{address}">Log in with Hugging Face</a>' in error_status(error, form)
    assert "<a" not in error_status(CheckpointNotFound("There is no built-in sample."), form)  # a login would not help


def test_who_sent_a_token_is_asked_to_log_in_only_if_it_is_no_longer_valid(
    closed: LocalHub, visitor: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("components.running.page_runs.login_page", lambda address: "login")
    assert "<a" not in error_status(
        AccessDenied("org/gated is gated, and your login or token may not read it."), partial(asked, {"model": "org/gated"})
    )
    closed.revoke(CANARY)
    for name in ("dtype", "sparsity", "conflict"):
        with pytest.raises(TokenRefused, match=r"^[^.]*expired or was revoked: log in again, or use another token\.$") as caught:
            _run(REQUESTS[name])
        assert '<a class="m-step" href="login">' in error_status(caught.value, partial(asked, {"model": "org/gated"}))


def test_a_token_ends_with_its_job() -> None:
    seen: list[Access] = []

    def look(request: Any, login: Any) -> Iterator[int]:
        seen.append(caller.get().access)
        yield 1

    async def two_visitors() -> None:
        steps = in_background(look)  # type: ignore[arg-type]
        first, second = steps(_request({}), LOGIN), steps(_request({}), None)
        assert (await anext(first), await anext(second)) == (1, 1)

    asyncio.run(two_visitors())
    assert seen == [Access(token=LOGIN.token), Access()]
    assert caller.get().access == Access()


def test_the_folder_of_a_killed_process_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of gated models are copied there: no other program may find them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(analysis_process, "_context", multiprocessing.get_context("spawn"))  # no fork server to wait for
    process = analysis_process._Process(runs_model=False)
    (folder,) = tmp_path.glob("mantissa-*")
    (folder / "weights").write_bytes(b"secret")
    assert folder.stat().st_mode & 0o77 == 0
    process.close()
    assert not folder.exists()


def test_access_crosses_processes_and_shows_no_token() -> None:
    access = Access(token=CANARY)
    assert pickle.loads(pickle.dumps(access)) == access and CANARY not in repr(Caller(Client("", ""), "", access))
