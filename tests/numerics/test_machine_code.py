"""Machine code that is kept: what is loaded is what was compiled, and nothing that is damaged, stale or incomplete ever runs."""

import ast
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest

from analyzers.numerics import machine_code
from analyzers.numerics.compiled import compiler
from analyzers.numerics.compiled.vector_code import room
from analyzers.numerics.machine_code import Loop

COMPILED = Path(compiler.__file__).parent
MODULE = "made_by_a_test"

float64, int64, uint32 = numba.float64, numba.int64, numba.uint32


def everything(
    codes: Any, table: Any, number: int, share: float, flag: bool, grid: tuple[int, int, int], out: Any
) -> tuple[int, float, bool, Any]:
    total = 0
    for i in range(codes.size):
        total += codes[i] * grid[i % 3]
    work = room(uint32, 16)
    for i in range(16):
        work[i] = uint32(i * number)
    for column in range(3):
        out[1, column] = table[0, column] * share
    return total + work[15], share * 2, not flag, work[3]


def positive(out: Any) -> None:
    if out[0] <= 0:
        raise ValueError


def last(out: Any, grid: Any) -> Any:
    return grid[-1]


def nothing(out: Any) -> None:
    out[0] += 1


def folded(table: Any) -> Any:
    return table.reshape(-1)[3]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where code is kept meanwhile, beside a folder that cannot be made; the loops of this file are in a module of `compiled`."""
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(machine_code, "_folders", lambda: [tmp_path / "file" / "in", tmp_path / "kept"])
    module = ModuleType(MODULE)
    for function in (everything, last, positive, nothing, folded):
        setattr(module, function.__name__, compiler.jit()(function))
    monkeypatch.setitem(sys.modules, f"analyzers.numerics.compiled.{MODULE}", module)
    return tmp_path / "kept"


@pytest.fixture
def no_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called on nothing can be compiled."""

    def refuse(*_: object) -> None:
        raise AssertionError("compiled")

    return lambda: monkeypatch.setattr(compiler, "machine_code", refuse)


def call(loop: Loop, at: int = 0) -> tuple[Any, Any]:
    """What a call returns and writes; its codes lie ``at`` bytes behind a place where any number may lie."""
    codes = np.frombuffer(bytearray(at) + np.arange(100, dtype=np.uint16).tobytes(), dtype=np.uint16, offset=at)
    out = np.zeros((2, 3))
    return loop(codes, np.array([[1.0, 2.0, 3.0]]), 7, 0.5, True, (1, 2, 3), out), out


EXPECTED = sum(i * (1, 2, 3)[i % 3] for i in range(100)) + 105, 1.0, False, 21


@pytest.mark.parametrize("at", [0, 1])
def test_all_kinds_of_arguments_and_results(at: int, folder: Path, no_compiler: Callable[[], None]) -> None:
    for _ in range(2):
        returned, out = call(Loop(MODULE, "everything"), at)
        assert returned == EXPECTED
        assert out.tolist() == [[0, 0, 0], [0.5, 1.0, 1.5]]
        no_compiler()
    (file,) = folder.iterdir()
    assert file.name == f"{MODULE}.everything-u2x1-f8x2-i-d-?-t3-f8x2"
    assert folder.stat().st_mode & 0o077 == 0


def test_read_only_arrays_and_numbers_of_numpy(folder: Path) -> None:
    loop = Loop(MODULE, "everything")
    codes = np.arange(100, dtype=np.uint16)
    codes.flags.writeable = False
    out = np.zeros((2, 3))
    assert loop(codes, np.ones((1, 3)), np.int64(7), np.float64(0.5), True, (1, 2, 3), out) == EXPECTED
    assert loop(codes[:0], np.ones((1, 3)), 7, 0.5, False, (1, 2, 3), out) == (105, 1.0, True, 21)


def test_what_a_loop_refuses(folder: Path) -> None:
    loop = Loop(MODULE, "positive")
    assert loop(np.ones(4)) is None
    with pytest.raises(RuntimeError, match="refused"):
        loop(np.zeros(4))
    for wrong in (np.ones(8)[::2], np.ones((4, 2))[:, 0], np.ones(4)[::-1], np.ones(4, dtype=">f8")):
        with pytest.raises(ValueError, match="side by side"):
            loop(wrong)


def test_damaged_code_is_compiled_again(folder: Path) -> None:
    call(Loop(MODULE, "everything"))
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:100], b"", b"\n\n\n", whole[:200] + b"\0" + whole[201:], b"0" + whole[1:], os.urandom(5000)):
        file.write_bytes(damaged)
        assert call(Loop(MODULE, "everything"))[0] == EXPECTED
        assert file.read_bytes().split(b"\n")[0] == whole.split(b"\n")[0]


def test_code_of_others_is_not_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call(Loop(MODULE, "everything"))
    (file,) = folder.iterdir()
    assert machine_code._read(file) is not None
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda number: os.stat_result([*real(number)[:4], os.getuid() + 1, *real(number)[5:]]))
    assert machine_code._read(file) is None


def test_tuples_of_another_length_are_another_type(folder: Path) -> None:
    loop, grids, table = Loop(MODULE, "last"), ((1, 2, 3), (4, 5), (6, 7, 8, 9)), np.zeros(1)
    assert [loop(table, grid) for grid in grids] == [3, 5, 9]


def test_where_nothing_can_be_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "_folders", list)
    assert call(Loop(MODULE, "everything"))[0] == EXPECTED
    assert not folder.exists()


def test_threads_that_begin_at_once(folder: Path) -> None:
    loop, start, found = Loop(MODULE, "nothing"), threading.Barrier(8), []

    def work() -> None:
        out = np.zeros(1)
        start.wait()
        for _ in range(100):
            loop(out)
        found.append(out[0])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [100] * 8


def test_a_loop_that_needs_numbas_runtime_is_refused(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="folded would need numba_attempt_nocopy_reshape"):
        Loop(MODULE, "folded")(np.zeros((2, 2)))
    assert not folder.exists()


def test_what_loops_are_made_of_names_the_folder() -> None:
    """Code that took a constant from a file that is not looked at would go on with the old one."""
    taken = set()
    for path in COMPILED.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("analyzers."):
                taken.add(node.module)
    taken.add("analyzers.numerics.sketches")  # where `pair_cells` has some from
    outside = {name.removeprefix("analyzers.numerics.") for name in taken if not name.startswith("analyzers.numerics.compiled")}
    assert outside == set(machine_code.CONSTANTS)


def test_every_state_of_the_sources_has_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "numerics"
    (here / "compiled").mkdir(parents=True)
    for name in (*machine_code.CONSTANTS, "compiled/loop"):
        (here / f"{name}.py").write_text("A = 1\n")
    monkeypatch.setattr(machine_code, "_HERE", here)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folders = machine_code._folders.__wrapped__
    before = folders()
    assert [folder.parent for folder in before] == [here / "__pycache__", tmp_path / "home" / ".cache" / "mantissa"]
    assert folders() == before
    for name in (*machine_code.CONSTANTS, "compiled/loop"):
        (here / f"{name}.py").write_text("A = 2\n")
        assert {folder.name for folder in folders()}.isdisjoint(folder.name for folder in before)
        before = folders()
