"""Local checkpoints, from the files to the opened checkpoint."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from analyzers.checkpoints import Access, LocalRepository, RangeFile, open_checkpoint, read_range
from analyzers.checkpoints.local import HASHED_WHOLE_BYTES
from analyzers.core import limits
from analyzers.core.errors import CheckpointNotFound, InvalidCheckpoint, LimitExceeded

_LOCAL = Access(local=True)


def _save(path: Path, **tensors: int) -> None:
    """A file of float32 vectors, name -> length."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name.replace("_DOT_", "."): np.ones(length, np.float32) for name, length in tensors.items()}, path)


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def files(tmp_path: Path) -> list[RangeFile]:
    """Twenty open files of 100 bytes, their number in each."""
    (tmp_path / "x").mkdir()
    for i in range(20):
        (tmp_path / "x" / f"{i:02}.bin").write_bytes(bytes([i]) * 100)
    repository = LocalRepository(tmp_path / "x")
    return [repository.open(path) for path in repository.files]


def test_no_file_stays_open_between_reads_by_many_threads(files: list[RangeFile]) -> None:
    assert (files[0].path, files[0].size) == ("00.bin", 100)
    before = _descriptors()
    with ThreadPoolExecutor(8) as threads:
        numbers = np.random.default_rng(0).integers(0, 20, 2_000).tolist()
        assert all(threads.map(lambda i: read_range(files[i], i, 9) == bytes([i]) * 9, numbers))
    assert read_range(files[0], 100, 0) == b""
    with pytest.raises(InvalidCheckpoint, match=r"00\.bin.* ends at byte 100"):
        read_range(files[0], 90, 11)
    assert _descriptors() <= before


@pytest.mark.parametrize("how", ["replaced", "written", "grown", "gone", "fifo", "link to itself", "folder"])
def test_a_file_that_changes_after_it_was_opened_is_refused(files: list[RangeFile], tmp_path: Path, how: str) -> None:
    """Also one whose time of modification is as before; a FIFO, which nobody writes to, is not waited for."""
    path = tmp_path / "x" / "00.bin"
    status = path.stat()
    while path.stat().st_ctime_ns == status.st_ctime_ns:  # the clock of a file system has ticks
        path.unlink()
        if how in ("replaced", "written", "grown"):
            path.write_bytes(bytes(101 if how == "grown" else 100))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        else:
            other = {"fifo": os.mkfifo, "link to itself": lambda _: path.symlink_to(path), "folder": os.mkdir}.get(how)
            if other:
                other(path)
            break
    with pytest.raises(InvalidCheckpoint, match=r"00\.bin.* cannot be opened, or was changed"):
        read_range(files[0], 0, 1)
    assert read_range(files[1], 0, 1) == b"\1"


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(range(100)))
    file = LocalRepository(tmp_path).open("x.bin")
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda descriptor, buffers, offset: whole(descriptor, [buffers[0][:7]], offset))
    assert read_range(file, 3, 90) == bytes(range(3, 93))


def test_links_to_files_are_followed_hidden_names_and_links_to_folders_are_not(tmp_path: Path) -> None:
    _save(tmp_path / "blobs" / "0123", a=3)
    snapshot = tmp_path / "snapshot"
    (snapshot / ".git").mkdir(parents=True)
    (snapshot / ".git" / "x.safetensors").write_bytes(b"")
    (snapshot / "model.safetensors").symlink_to(tmp_path / "blobs" / "0123")
    (snapshot / "loop").symlink_to(snapshot)
    (snapshot / "gone").symlink_to(tmp_path / "nowhere")
    os.link(tmp_path / "blobs" / "0123", snapshot / "hard.txt")
    assert list(LocalRepository(snapshot).files) == ["hard.txt", "model.safetensors"]
    with open_checkpoint(str(snapshot), _LOCAL) as checkpoint:
        assert checkpoint.parameters == 3


def test_commit_changes_with_every_file_that_matters(tmp_path: Path) -> None:
    commits = list[str]()

    def note() -> None:
        commits.append(LocalRepository(tmp_path).commit)
        assert len(commits[-1]) == 64

    weights = tmp_path / "model.safetensors"
    for change in (
        lambda: _save(weights, a=3),
        lambda: (tmp_path / "config.json").write_text("{}"),
        lambda: _save(weights, a=4),
        lambda: weights.rename(tmp_path / "other.safetensors"),
        lambda: os.truncate(tmp_path / "other.safetensors", HASHED_WHOLE_BYTES + 1),  # too large to be hashed whole
        lambda: os.utime(tmp_path / "other.safetensors", ns=(1, 1)),
    ):
        change()
        note()
    assert len(set(commits)) == len(commits)
    (tmp_path / "README.md").write_text("no weights")
    note()
    assert commits[-1] == commits[-2]


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(5):
        (tmp_path / str(index)).mkdir()
    monkeypatch.setattr(limits, "REPOSITORY_FILES", 4)
    with pytest.raises(LimitExceeded, match="more than 4 files"):
        LocalRepository(tmp_path)


@pytest.mark.parametrize("text", ["/nowhere/at all", "./nowhere", "/dev/null"])
def test_missing_path_is_named_as_typed(text: str) -> None:
    with pytest.raises(CheckpointNotFound) as caught:
        open_checkpoint(text, _LOCAL)
    assert f'"{text}"' in str(caught.value)


def test_what_looks_like_weights_and_cannot_be_read_is_listed_or_refused(tmp_path: Path) -> None:
    odd = os.fsdecode(b"b\xff.safetensors")
    makers: list[Callable[[Path], object]] = [
        lambda path: path.symlink_to("/nowhere"),
        lambda path: path.symlink_to(path.name),
        os.mkfifo,
        lambda path: path.with_name(odd).write_bytes(b"x"),
    ]
    for number, make in enumerate(makers):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder / "last.safetensors")
        with pytest.raises(InvalidCheckpoint, match="last.safetensors" if number < 3 else "b.*xff"):
            open_checkpoint(str(folder), _LOCAL)
        _save(folder / "model.safetensors", a=3)
        with open_checkpoint(str(folder), _LOCAL) as checkpoint:
            assert checkpoint.parameters == 3 and len(checkpoint.commit) == 64
            assert [each.code for each in checkpoint.not_read] == ["outside"]


def test_sharded_checkpoint(tmp_path: Path) -> None:
    _save(
        tmp_path / "model-00001-of-00002.safetensors", model_DOT_layers_DOT_0_DOT_self_attn_DOT_q_proj_DOT_weight=6, **{"x.masked_bias": 1}
    )
    _save(tmp_path / "model-00002-of-00002.safetensors", lm_head_DOT_weight=5, empty=0)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    weight_map = {"model.layers.0.self_attn.q_proj.weight": first, "x.masked_bias": second, "lm_head.weight": second}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text('{"torch_dtype": "float32"}')
    with open_checkpoint(f"{tmp_path}/", _LOCAL) as checkpoint:
        assert checkpoint.ref == str(tmp_path)
        assert not checkpoint.public
        assert [file.path for file in checkpoint.files] == [first, second]
        assert checkpoint.parameters == 11
        assert checkpoint.nbytes == 48
        assert checkpoint.config == {"torch_dtype": "float32"}
        assert checkpoint.quantization is None
        tensors = {tensor.name: tensor for tensor in checkpoint.tensors}
        assert tensors["x.masked_bias"].buffer
        query = tensors["model.layers.0.self_attn.q_proj.weight"]
        assert (query.role, query.layer, query.shape, query.file) == ("attention", 0, (6,), 0)
        assert read_range(checkpoint.files[0], query.offset, query.nbytes) == np.ones(6, np.float32).tobytes()
        codes = {note.code: note.values["name"] for note in checkpoint.notes}
        assert codes.keys() <= {"index-missing-names", "index-wrong-files"} and "x.masked_bias" in codes.values()
    with open_checkpoint(str(tmp_path / first), _LOCAL) as alone:
        assert alone.ref == str(tmp_path / first)
        assert alone.parameters == 6


@pytest.mark.parametrize("content", ["{", "[]", "9" * 10_000])
def test_damaged_config_is_noted(tmp_path: Path, content: str) -> None:
    _save(tmp_path / "model.safetensors", a=1)
    (tmp_path / "config.json").write_text(content)
    with open_checkpoint(str(tmp_path), _LOCAL) as checkpoint:
        assert checkpoint.config is None
        assert [(note.code, note.values["file"]) for note in checkpoint.notes] == [("unreadable-json", "config.json")]


def test_tensor_limit_counts_over_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save(tmp_path / "a.safetensors", a=1, b=1)
    _save(tmp_path / "b.safetensors", c=1, d=1)
    monkeypatch.setattr(limits, "TENSORS", 3)
    with pytest.raises(LimitExceeded, match="more than 3 tensors"):
        open_checkpoint(str(tmp_path), _LOCAL)


def test_opening_local_files_imports_nothing_heavy(tmp_path: Path) -> None:
    _save(tmp_path / "model.safetensors", a=1)
    program = (
        "import sys; from analyzers.checkpoints import Access, open_checkpoint\n"
        f"open_checkpoint({str(tmp_path)!r}, Access(local=True)).close()\n"
        "print([name for name in ('huggingface_hub', 'torch', 'pandas', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


_STREAMED = """
import resource, sys
from analyzers.checkpoints import Access, open_checkpoint, stream, whole_spans
with open_checkpoint(sys.argv[1], Access(local=True)) as checkpoint:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spans = whole_spans([(each,) for each in checkpoint.tensors])
    for step in stream([checkpoint], spans, lambda span, chunks: sum(int(c.codes.any()) for c in chunks)):
        assert not step.result
print(step.bytes_read, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """The file is one tensor of zeros, which take no room on the disk."""
    size = 400 << 20
    header = json.dumps({"a.weight": {"dtype": "BF16", "shape": [size // 2048, 1024], "data_offsets": [0, size]}}).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    command = [sys.executable, "-c", _STREAMED, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True, cwd=Path(__file__).parents[2])
    nbytes, kilobytes = map(int, run.stdout.split())
    assert nbytes == size and kilobytes < (limits.STREAM_BYTES >> 10) + 20_000
