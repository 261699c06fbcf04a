"""Windows show what the file holds, keep memory bounded, and turn a file cut off under them into an error."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzers.checkpoints import windows
from analyzers.checkpoints.local import LocalFile
from analyzers.errors import InvalidCheckpoint

SIZE = 3 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("windows")


@pytest.fixture(scope="module")
def whole(folder: Path) -> bytes:
    data = np.random.default_rng(0).bytes(SIZE)
    (folder / "whole").write_bytes(data)
    return data


def opened(path: Path) -> LocalFile:
    return LocalFile(path, path.name, path.stat().st_size)


def empty(size: int) -> NDArray[np.uint8]:
    return np.full(size, 7, np.uint8)


@given(offset=st.integers(0, SIZE), size=st.integers(0, 1 << 20))
@settings(max_examples=150, deadline=None)
def test_a_window_shows_the_bytes_of_the_file(folder: Path, whole: bytes, offset: int, size: int) -> None:
    size = min(size, SIZE - offset)
    file = opened(folder / "whole")
    with file.window(offset, empty(size)) as found:
        assert found.tobytes() == whole[offset : offset + size]
    file.close()


@pytest.mark.parametrize("offset", [4096, 4096 + 5])
def test_nothing_is_copied(folder: Path, whole: bytes, offset: int) -> None:
    assert windows.AVAILABLE  # where it is not, this test and the memory's are of nothing
    file, buffer = opened(folder / "whole"), empty(1 << 20)
    with file.window(offset, buffer) as found:
        assert found.size == buffer.size
        assert set(buffer.tolist()) == {7}
    file.close()


def test_what_is_kept_of_a_window_stays_readable(folder: Path, whole: bytes) -> None:
    file = opened(folder / "whole")
    with file.window(64, empty(1 << 20)) as found:
        pass
    file.close()
    assert found.tobytes() == whole[64 : 64 + (1 << 20)]


@pytest.mark.parametrize("left", [0, 4096, SIZE - 1])
def test_a_file_cut_off_under_a_window_is_an_error(folder: Path, left: int) -> None:
    path = folder / f"cut-{left}"
    path.write_bytes(b"\1" * SIZE)
    file = opened(path)
    look = file.window(0, empty(SIZE))
    found = look.__enter__()
    assert int(found.sum()) == SIZE
    os.truncate(path, left)
    assert int(found.sum()) == left  # what is missing reads as zeros
    with pytest.raises(InvalidCheckpoint, match="cut off"):
        look.__exit__(None, None, None)
    with pytest.raises(InvalidCheckpoint, match="cut off"):
        file.window(0, empty(SIZE)).__enter__()
    file.close()


@pytest.mark.parametrize("cut", range(3))
def test_one_thread_looks_at_several_windows(folder: Path, cut: int) -> None:
    """The one whose file is cut off is told so, the others show their bytes."""
    paths = [folder / f"several-{cut}-{i}" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_bytes(bytes([i + 1]) * SIZE)
    files = [opened(path) for path in paths]
    looks = [file.window(0, empty(SIZE)) for file in files]
    found = [look.__enter__() for look in looks]
    os.truncate(paths[cut], 4096)
    assert [int(each.sum(dtype=np.int64)) for each in found] == [(i + 1) * (4096 if i == cut else SIZE) for i in range(3)]
    for i, look in enumerate(looks):
        if i == cut:
            with pytest.raises(InvalidCheckpoint, match="cut off"):
                look.__exit__(None, None, None)
        else:
            look.__exit__(None, None, None)
    for file in files:
        file.close()


def test_windows_keep_no_file_open_and_are_given_back(folder: Path, whole: bytes) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(folder / "whole"))

    before = len(list(Path("/proc/self/fd").iterdir()))
    descriptor = os.open(folder / "whole", os.O_RDONLY)
    several = [windows.Window(descriptor, 0, 1 << 16) for _ in range(40)]
    os.close(descriptor)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    kept = several[7].codes
    del several
    gc.collect()
    assert mapped() == 1 and kept.tobytes() == whole[: 1 << 16]
    del kept
    assert mapped() == 0


def test_every_thread_is_told_of_its_own_window(folder: Path) -> None:
    told: list[str] = []

    def look(number: int) -> None:
        path = folder / f"thread-{number}"
        path.write_bytes(b"\1" * SIZE)
        file = opened(path)
        try:
            with file.window(0, empty(SIZE)) as found:
                os.truncate(path, 100 if number % 2 else SIZE)
                found.sum()
            told.append(f"{number} whole")
        except InvalidCheckpoint:
            told.append(f"{number} cut")
        file.close()

    threads = [threading.Thread(target=look, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["0 whole", "1 cut", "2 whole", "3 cut", "4 whole", "5 cut"]


def test_other_bus_errors_still_end_the_process(folder: Path, whole: bytes) -> None:
    script = f"""
import mmap, os
import numpy as np
from pathlib import Path
from analyzers.checkpoints.local import LocalFile
file = LocalFile(Path({str(folder / "whole")!r}), "whole", {SIZE})
with file.window(0, np.zeros(1 << 20, np.uint8)) as found:
    descriptor = os.open({str(folder / "other")!r}, os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, 1 << 20)
    other = mmap.mmap(descriptor, 1 << 20)
    os.ftruncate(descriptor, 0)
    print(other[5000])
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110)
    assert run.returncode == -7
    assert run.stdout == ""


def test_memory_stays_bounded_whatever_the_size_of_the_file(folder: Path) -> None:
    path = folder / "sparse"
    with path.open("wb") as file:
        file.truncate(400 << 20)
    script = f"""
import resource
import numpy as np
from pathlib import Path
from analyzers.checkpoints.local import LocalFile
file, buffer = LocalFile(Path({str(path)!r}), "sparse", {400 << 20}), np.empty(8 << 20, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for offset in range(0, {400 << 20}, buffer.size):
    with file.window(offset, buffer) as found:
        assert not found.any()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110, check=True)
    assert int(run.stdout) < 40
