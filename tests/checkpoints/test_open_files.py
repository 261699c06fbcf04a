"""Checkpoints of many files: none stays open between reads, and a file that was replaced meanwhile is refused."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from analyzers.checkpoints import LocalRepository, RangeFile, read_range
from analyzers.core.errors import InvalidCheckpoint


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def files(tmp_path: Path) -> list[RangeFile]:
    """Twenty files of 100 bytes, their number in each."""
    for i in range(20):
        (tmp_path / f"{i:02}.bin").write_bytes(bytes([i]) * 100)
    repository = LocalRepository(tmp_path)
    before = descriptors()
    opened: list[RangeFile] = [repository.open(path) for path in repository.files]
    assert descriptors() == before
    return opened


def test_no_file_stays_open_between_reads(files: list[RangeFile]) -> None:
    before = descriptors()
    for i in (*range(20), *range(19, -1, -1), 3, 17, 3):
        assert read_range(files[i], 10, 5) == bytes([i]) * 5
    with pytest.raises(InvalidCheckpoint, match="ends at byte 100"):
        read_range(files[0], 90, 11)
    assert descriptors() == before
    for file in files:
        file.close()
        file.close()
        with pytest.raises(InvalidCheckpoint, match="it is closed"):
            read_range(file, 0, 1)


@pytest.mark.parametrize("how", ["replaced", "written", "grown", "gone"])
def test_a_file_that_is_another_when_it_is_opened_again_is_refused(files: list[RangeFile], tmp_path: Path, how: str) -> None:
    path = tmp_path / "00.bin"
    status = path.stat()
    if how == "replaced":
        (tmp_path / "other").write_bytes(bytes(100))
        os.utime(tmp_path / "other", ns=(status.st_atime_ns, status.st_mtime_ns))
        (tmp_path / "other").rename(path)
    elif how == "written":
        path.write_bytes(bytes(100))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    elif how == "grown":
        with path.open("ab") as file:
            file.write(b"more")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        path.unlink()
    before = descriptors()
    with pytest.raises(InvalidCheckpoint, match=r'^"00\.bin" was changed, replaced or removed'):
        read_range(files[0], 0, 1)
    assert descriptors() <= before
    assert read_range(files[1], 0, 1) == b"\1"


def test_many_threads(files: list[RangeFile]) -> None:
    wrong = []

    def read(seed: int) -> None:
        for i in np.random.default_rng(seed).integers(0, 20, 300).tolist():
            if read_range(files[i], i, 9) != bytes([i]) * 9:
                wrong.append(i)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    before = descriptors()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and descriptors() <= before


def test_fifty_checkpoints_of_many_files_where_few_may_be_open(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for shard in range(6):
        save_file(
            {f"layers.{shard}.w{i}": rng.standard_normal((20, 30)).astype(np.float32) for i in range(2)}, tmp_path / f"{shard}.safetensors"
        )
    for number in range(51):
        (tmp_path / f"step-{number}").mkdir()
        for shard in range(6):
            os.link(tmp_path / f"{shard}.safetensors", tmp_path / f"step-{number}" / f"model-{shard + 1:05}-of-00006.safetensors")
    program = f"""
import resource
from safetensors.numpy import load_file
from analyzers.checkpoints import Access, align, open_checkpoint, stream, whole_spans
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
checkpoints = [open_checkpoint({str(tmp_path)!r} + f"/step-{{i}}", Access(local=True)) for i in range(51)]
expected = {{}}
for shard in range(6):
    expected |= load_file({str(tmp_path)!r} + f"/{{shard}}.safetensors")
alignment = align(checkpoints[0], checkpoints[1:])
def work(span, chunks):
    values = expected[span.tensor.name].reshape(-1)
    count = 0
    for chunk in chunks:
        part = values[chunk.start : chunk.start + chunk.codes.size]
        count += part.size * all(each.tobytes() == part.tobytes() for each in chunk.sides)
    return count
spans = whole_spans(alignment.sides)
print(sum(step.result or 0 for step in stream(checkpoints, spans, work)))
for checkpoint in checkpoints:
    checkpoint.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=110)
    assert done.stdout == "7200\n", done.stderr
