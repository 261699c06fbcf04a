"""Lists: what counts, in which order, and what hostile ones lead to."""

import subprocess
import sys
from pathlib import Path

import pytest

from analyzers.core import limits
from analyzers.core.errors import LimitExceeded
from analyzers.scan.listing import Listed, read_list


def listed(tmp_path: Path, data: bytes) -> list[Listed]:
    (tmp_path / "list").write_bytes(data)
    return read_list(str(tmp_path / "list"))


def test_order_comments_blank_lines_and_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = b"\xef\xbb\xbf# models\r\n\norg/a  # the first\r\n  gpt2@main\norg/a\n./folder # not a comment\n/abs/path\nsample:tiny-bf16"
    found = listed(tmp_path, text)
    assert [one.asked for one in found] == ["org/a", "gpt2@main", "./folder # not a comment", "/abs/path", "sample:tiny-bf16"]
    assert [one.line for one in found] == [3, 4, 6, 7, 8] and all(one.problem is None for one in found)
    assert [one.key for one in found][2:4] == [f"{tmp_path}/folder # not a comment", "/abs/path"]


@pytest.mark.parametrize(
    "line", ["a b/c", "org/../x", "search:llama", "\x00", "\x1b[31mred", "a" * 100_000, "\u2028", "https://hf.co/datasets/org/name"]
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
    program = "import sys; from analyzers.scan.listing import read_list; print(read_list(sys.argv[1])[0].asked)"
    command = f"{sys.executable} -c '{program}' <(sleep 1; echo org/a)"  # as slow as a question to the Hub
    done = subprocess.run(["bash", "-c", command], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "org/a\n"


def test_sizes_are_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzers.scan.listing.SCAN_LIST_BYTES", 1000)
    with pytest.raises(LimitExceeded, match="more than 1,000 bytes"):
        listed(tmp_path, b"org/a\n" * 200)
    with pytest.raises(LimitExceeded, match="more than 1,000 bytes"):
        read_list("/dev/zero")
    monkeypatch.setattr(limits, "SCAN_CHECKPOINTS", 10)
    with pytest.raises(LimitExceeded, match="more than 10 lines"):
        listed(tmp_path, b"\n" * 20)
