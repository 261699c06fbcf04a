"""Files and folders that are written whole or not at all, by processes that are really killed."""

import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from analyzers.core.atomic_files import append_line, replacing

ROOT = Path(__file__).parents[1]


@contextmanager
def writing(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that is in the middle of writing ``path``; it lives until it is told to end."""
    program = (
        "import sys, time; from pathlib import Path; from analyzers.core.atomic_files import replacing\n"
        "with replacing(Path(sys.argv[1])) as file:\n"
        "    file.write_text('half'); print('writing', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        yield process


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait(timeout=60)


def write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write_text(text)


def test_a_file_is_replaced_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    write(path, "old")
    path.chmod(0o600)
    with replacing(path) as file:
        file.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o600
    with suppress(KeyboardInterrupt), replacing(path) as file:
        file.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_a_device_is_written_to(tmp_path: Path) -> None:
    write(tmp_path / "x.txt", "old")
    (tmp_path / "link").symlink_to(tmp_path / "x.txt")
    write(tmp_path / "link", "new")
    write(Path("/dev/null"), "gone")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "x.txt").read_text() == "new"
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_folder_and_names_of_any_length(tmp_path: Path) -> None:
    for name in ("folder", "é" * 127, "x" * 255):
        with replacing(tmp_path / name) as folder:
            (folder / "deep").mkdir(parents=True)
            (folder / "deep" / "x.txt").write_text("all of it")
            assert not (tmp_path / name).exists()
        assert (tmp_path / name / "deep" / "x.txt").read_text() == "all of it"
    assert len(list(tmp_path.iterdir())) == 3


def test_errors_name_the_file_that_was_asked_for(tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "x.txt", tmp_path / ("x" * 300)):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - with which name, not which error
            write(path, "x")
        assert caught.value.filename == str(path)
    assert not list(tmp_path.iterdir())


def test_a_killed_process_leaves_the_old_file(tmp_path: Path) -> None:
    write(tmp_path / "x.txt", "old")
    with writing(tmp_path / "x.txt") as killed:
        kill(killed)
    assert (tmp_path / "x.txt").read_text() == "old"
    write(tmp_path / "x.txt", "new")
    assert (tmp_path / "x.txt").read_text() == "new"


def test_a_line_is_appended_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "looks.jsonl"
    append_line(path, "1")
    path.write_text("1\n2\n3 torn")
    append_line(path, "4")
    assert path.read_text() == "1\n2\n3 torn\n4\n"
    program = (
        "import resource, signal, sys; from pathlib import Path; from analyzers.core.atomic_files import append_line\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "append_line(Path(sys.argv[1]), 'x' * 5000)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "File too large" in done.stderr and path.read_text() == "1\n2\n3 torn\n4\n"
