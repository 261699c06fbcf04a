"""Instruction data: files, datasets on a Hub, and rows that are no pairs."""

import io
import json
import os
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import AccessDenied, CheckpointNotFound, InvalidData, LimitExceeded, MantissaError
from analyzers.language_models.builtin_text import Pair
from analyzers.language_models.instruction_data import instruction_pairs
from tests.hub import LocalHub

HERE = Access(local=True)
ROWS: list[dict[str, Any]] = [
    {"instruction": "Add.", "input": "2 and 2", "output": "4"},
    {"prompt": "Say é.", "completion": "é"},
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi?"},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "More?"},
            {"role": "assistant", "content": "No."},
        ]
    },
    {"instruction": "Name one.", "input": None, "output": "One", "text": "unused"},
]
PAIRS = (Pair("Add.", "2 and 2", "4"), Pair("Say é.", "", "é"), Pair("Be brief.\n\nHi?", "", "Yes."), Pair("Name one.", "", "One"))


def lines(content: list[Any]) -> bytes:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in content).encode()


def table(content: list[dict[str, Any]], rows_in_group: int = 2) -> bytes:
    buffer = io.BytesIO()
    names = {name: None for row in content for name in row}
    parquet.write_table(pyarrow.Table.from_pylist([{**names, **row} for row in content]), buffer, row_group_size=rows_in_group)
    return buffer.getvalue()


def put(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", lines(ROWS)),
        ("a.jsonl", b"\xef\xbb\xbf\n" + lines(ROWS).replace(b"\n", b"\r\n\r\n") + b"\n\n"),
        ("a.json", lines([ROWS])),
        ("a.json", b" \n" + lines(ROWS)),
        ("a.parquet", table(ROWS)),
    ],
)
def test_each_form_of_a_file(tmp_path: Path, name: str, content: bytes) -> None:
    path = put(tmp_path, name, content)
    found = instruction_pairs(path, HERE, 10)
    assert (found.pairs, found.source, found.commit) == (PAIRS, name, found.commit)
    assert instruction_pairs(path, HERE, 3).pairs == PAIRS[:3]
    assert instruction_pairs(path, HERE, 3).commit not in (found.commit, None)


@pytest.mark.parametrize(
    "content",
    [
        lines(ROWS[:2]) + b'\n{"instruction": "a", "output"\n',
        b"\n\n\xff\xfe{}",
        b"[" * 100_000,
        b'{"a": ' * 100_000,
        b"[1, 2]\n" + lines(ROWS[:1]),
        b"12\n",
        b'{"question": "a", "answer": "b"}',
        b'{"instruction": "a", "output": 4}',
        b'{"instruction": " ", "output": "b"}',
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}',
        b'{"messages": ["a", 1, null]}',
        rb'{"instruction": "\ud800", "output": "b"}',
        b"\n \n",
    ],
)
def test_what_is_no_pair_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidData):
        instruction_pairs(put(tmp_path, "a.jsonl", content), HERE, 10)


def test_a_pair_says_where_it_was_read(tmp_path: Path) -> None:
    row = b'{"prompt": "a", "completion": "b"}\n'
    first, second = instruction_pairs(put(tmp_path, "x.jsonl", row + b"\n" + row), Access(local=True), 5).pairs
    assert (first.where, second.where) == ('line 1 of "x.jsonl"', 'line 3 of "x.jsonl"')
    assert first == second


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", b'{"instruction": "' + b"a" * 100_001 + b'", "output": "b"}', "100,001 characters for its question, more than 100,000"),
        ("a.jsonl", lines(ROWS) + b"\n" + b" " * 2_000_000, r"Line 5 .* longer than 1,600,000 bytes"),
        ("a.jsonl", b"\n" * 1_000_001, r"Too few samples in the first 1,000,000 lines"),
        ("a.jsonl", (b" " * 999 + b"\n") * 3_001, r"Too few samples in the first 3,000,000 bytes .*MANTISSA_DATASET_BYTES"),
        ("a.json", b"[" + b" " * 3_000_000 + b"]", "one JSON list of 3,000,002 bytes, more than 3,000,000"),
    ],
)
def test_what_is_too_much_is_not_read(tmp_path: Path, name: str, content: bytes, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DATASET_BYTES", 3_000_000)
    with pytest.raises(LimitExceeded, match=sentence):
        instruction_pairs(put(tmp_path, name, content), HERE, 10)


@pytest.mark.parametrize(
    "content",
    [b"", b"PAR1", b"PAR1" * 4, table(ROWS)[:-5], table(ROWS)[4:], table(ROWS)[:-8] + b"\xff\xff\xff\x7fPAR1"],
)
def test_what_is_no_parquet_file(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidData, match="not a Parquet file"):
        instruction_pairs(put(tmp_path, "a.parquet", content), HERE, 10)


def test_a_footer_at_which_pyarrow_aborts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ParquetFile", lambda *given, **options: os.abort())
    with pytest.raises(InvalidData, match="not a Parquet file"):
        instruction_pairs(put(tmp_path, "a.parquet", table(ROWS)), HERE, 10)


def test_a_dataset_is_read_at_its_commit_and_no_further_than_needed(hub: LocalHub, tmp_path: Path) -> None:
    random = Random(0)
    many = table([{"instruction": f"Say {i}.", "output": f"{i}", "other": random.randbytes(20_000)} for i in range(200)], 10)
    commit = hub.add("org/data", {"data/train-00000-of-00002.parquet": many, "README.md": b""}, kind="dataset")
    hub.commit("org/data", {"data/train-00000-of-00002.parquet": table(ROWS)}, kind="dataset")
    found = instruction_pairs(f"org/data@{commit}", Access(), 12)
    assert [pair.instruction for pair in found.pairs] == [f"Say {i}." for i in range(12)]
    assert (found.source, found.commit) == ("datasets/org/data", commit)
    assert sum(request.sent for request in hub.requests) < len(many) // 2
    assert not [path for path in (tmp_path / "hf-home").rglob("*") if path.is_file()]
    assert instruction_pairs("org/data", Access(), 12).pairs == PAIRS
    assert instruction_pairs(f"{found.source}@{commit}", Access(), 12) == found  # as a permalink names it


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ({"test.jsonl": lines(ROWS[3:]), "train.jsonl": lines(ROWS[:1])}, PAIRS[:1]),
        ({"train-1.jsonl": lines(ROWS[1:2]), "train-0.jsonl": lines(ROWS[:1])}, PAIRS[:2]),
        ({"en/train.jsonl": lines(ROWS[:1]), "fr/train.jsonl": lines(ROWS[1:2])}, PAIRS[:1]),
        ({"dataset_infos.json": b"{}", "alpaca_data.json": lines([ROWS])}, PAIRS),
        ({"a.jsonl": lines(ROWS[:1]), "a.parquet": table(ROWS[1:2])}, PAIRS[1:2]),
    ],
)
def test_which_files_of_a_dataset_are_read(hub: LocalHub, contents: dict[str, bytes], expected: tuple[Pair, ...]) -> None:
    hub.add("org/data", contents, kind="dataset")
    assert instruction_pairs("org/data", Access(), 9).pairs == expected


def test_private_and_gated_datasets(hub: LocalHub) -> None:
    token = "hf_" + "visitor" * 4
    hub.add("org/secret", {"a.jsonl": lines(ROWS)}, kind="dataset", private=True)
    hub.add("org/gated", {"a.jsonl": lines(ROWS)}, kind="dataset", gated="manual")
    hub.user(token, "visitor", ["org/secret", "org/gated"])
    for name, error in (("org/secret", CheckpointNotFound), ("org/gated", AccessDenied)):
        with pytest.raises(error):
            instruction_pairs(name, Access(), 9)
        assert instruction_pairs(name, Access(token=token), 9).pairs == PAIRS


@pytest.mark.parametrize(("source", "access"), [("mine.jsonl", Access()), ("/etc/passwd", Access()), ("", HERE), ("nowhere.jsonl", HERE)])
def test_what_is_no_source(source: str, access: Access) -> None:
    with pytest.raises(MantissaError):
        instruction_pairs(source, access, 9)


def test_a_visitor_is_told_nothing_of_this_machine(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.csv").write_text("a,b")
    for access, said in ((HERE, True), (Access(), False)):
        with pytest.raises(MantissaError) as caught:
            instruction_pairs("./pairs.csv", access, 9)
        assert ("this machine" in str(caught.value)) == said
