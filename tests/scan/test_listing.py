"""Lists: what counts, in which order, and what hostile ones lead to."""

import subprocess
import sys
from pathlib import Path

import pytest

from analyzers.checkpoints import Access
from analyzers.checkpoints.hub import hub_repository as hub_module
from analyzers.checkpoints.hub.hub_repository import list_models
from analyzers.core import limits
from analyzers.core.errors import CheckpointNotFound, HubError, LimitExceeded
from analyzers.scan.listing import Listed, read_list
from tests.hub import Fault, LocalHub


def nothing(kind: str, text: str, limit: int) -> list[str]:
    raise AssertionError(f"the Hub was asked for {kind}:{text}")


def listed(tmp_path: Path, data: bytes, limit: int | None = None) -> list[Listed]:
    (tmp_path / "list").write_bytes(data)
    return read_list(str(tmp_path / "list"), limit, nothing)


def test_order_comments_blank_lines_and_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = b"\xef\xbb\xbf# models\r\n\norg/a  # the first\r\n  gpt2@main\norg/a\n./folder # not a comment\n/abs/path\nsample:tiny-bf16"
    found = listed(tmp_path, text)
    assert [one.asked for one in found] == ["org/a", "gpt2@main", "./folder # not a comment", "/abs/path", "sample:tiny-bf16"]
    assert [one.line for one in found] == [3, 4, 6, 7, 8] and all(one.problem is None for one in found)
    assert [one.key for one in found][2:4] == [f"{tmp_path}/folder # not a comment", "/abs/path"]
    assert listed(tmp_path, text, 2) == found[:2]


@pytest.mark.parametrize(
    "line",
    [
        "a b/c",
        "org/../x",
        "search:llama",
        "../x",
        "\x00",
        "\x1b[31mred",
        "a" * 100_000,
        "🤗",
        "\u2028",
        "sample:",
        "https://hf.co/datasets/org/name",
    ],
)
def test_a_bad_line_is_a_row_with_its_line(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = listed(tmp_path, f"org/a\n{line}\norg/b\n".encode())
    bad = [one for one in found if one.problem is not None]
    if line.strip():
        assert [one.line for one in bad] == [2] and bad[0].problem
        assert bad[0].asked.isprintable() and len(bad[0].asked) <= 203
    assert [one.asked for one in found if one.problem is None] == ["org/a", "org/b"]


@pytest.mark.parametrize("secret", ["hf_" + "a" * 34, "https://user:password@huggingface.co/org/name", "x hf_" + "b" * 20])
def test_secrets_are_not_repeated(secret: str, tmp_path: Path) -> None:
    (bad,) = listed(tmp_path, secret.encode())
    said = f"{bad.asked} {bad.problem} {bad.key}"
    assert bad.problem and not any(part in said for part in ("aaaaaaaa", "bbbbbbbb", "password"))


def test_a_pipe_is_read() -> None:
    program = "import sys; from analyzers.scan.listing import read_list; print(read_list(sys.argv[1], None, None)[0].asked)"
    command = f"{sys.executable} -c '{program}' <(sleep 3; echo org/a)"  # as slow as a question to the Hub
    done = subprocess.run(["bash", "-c", command], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "org/a\n"


def test_sizes_are_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzers.scan.listing.SCAN_LIST_BYTES", 1000)
    with pytest.raises(LimitExceeded, match="more than 1,000 bytes"):
        listed(tmp_path, b"org/a\n" * 200)
    with pytest.raises(LimitExceeded, match="more than 1,000 bytes"):
        read_list("/dev/zero", None, nothing)
    monkeypatch.setattr(limits, "SCAN_CHECKPOINTS", 10)
    with pytest.raises(LimitExceeded, match="more than 10 lines"):
        listed(tmp_path, b"\n" * 20)


def test_what_the_hub_finds(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        hub.add(f"org/llama-{number}", {"README.md": b""})
        hub.add(f"orgs/llama-{number}", {"README.md": b""})
    hub.add("org/secret", {"README.md": b""}, private=True)
    stranger = Access()
    monkeypatch.setattr(hub_module, "_PAGE", 3)
    assert list_models("org", "org", 100, stranger) == [f"org/llama-{n}" for n in range(7)]
    assert list_models("org", "org", 5, stranger) == [f"org/llama-{n}" for n in range(5)]
    assert len(list_models("search", "LLAMA-1", 100, stranger)) == 2
    assert list_models("org", "nobody", 10, stranger) == []
    pages = [request for request in hub.requests if request.path == "/api/models"]
    assert len(pages) == 3 + 2 + 1 + 1
    hub.user("hf_" + "x" * 34, "me", ["org/secret"])
    assert "org/secret" in list_models("org", "org", 100, Access(token="hf_" + "x" * 34))


@pytest.mark.parametrize(
    "fault",
    [
        Fault("^/api/models$", times=None, body=b"<html>"),
        Fault("^/api/models$", times=None, status=404),
    ],
)
def test_the_hub_misbehaves(fault: Fault, hub: LocalHub) -> None:
    hub.fault(fault)
    with pytest.raises((HubError, CheckpointNotFound)):
        list_models("search", "x", 10, Access())


LINKS = ["<https://evil.example/x>; rel=next", '<http://u:p@127.0.0.1/x>; rel="next"', "<", "<x y>; rel=next", "x" * 9000]


@pytest.mark.parametrize("link", LINKS)
def test_the_next_page_is_the_hubs(link: str, hub: LocalHub) -> None:
    for number in range(4):
        hub.add(f"org/m{number}", {"README.md": b""})
    hub.fault(Fault("^/api/models$", times=None, headers={"Link": link}))
    assert len(list_models("org", "org", 100, Access())) == 4
    assert len(hub.requests) == 1
