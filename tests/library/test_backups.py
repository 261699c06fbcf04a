"""Backups: one a day, some of them; and what comes back from a library that was deleted, replaced, damaged or may not be written."""

import ctypes
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from analyzers.core.errors import LibraryUnavailable
from components.library import FLAG_REASONS, Identity, Library, database, label_rows
from components.library.backups import restore
from components.library.database import FILE
from tests.components.dtype_reports import report

ROOT = Path(__file__).parents[2]
ANN, BOB = Identity.login("ann"), Identity.login("bob")
LINK = "https://example.org/paper"
LABELS = 400
_DROP_CAPABILITY, _OVERRIDE_MODES = 24, 1  # numbers of Linux: root may write everywhere unless this is taken from it


def fill(library: Library, first: int = 0) -> None:
    """Add LABELS labels, faster than one by one."""
    with library._database.write() as connection:
        for number in range(first, first + LABELS):
            label_rows.add_label(connection, Identity.login(f"user{number}"), f"org/m{number}", "bf16", LINK, "a quote " * 20)


def backed_up(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "backups").iterdir())


def test_a_backup_a_day_is_made_and_the_oldest_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Library.open(tmp_path) as library:
        library.add_label("org/name", "bf16", LINK, ANN)
        library._backups.make()
        (today,) = backed_up(tmp_path)
        for day in range(1, 6):
            shutil.copy(tmp_path / "backups" / today, tmp_path / "backups" / f"library-2026-01-0{day}.sqlite3")
        (tmp_path / "backups" / today).unlink()
        library._backups.make()
        assert backed_up(tmp_path) == ["library-2026-01-04.sqlite3", "library-2026-01-05.sqlite3", today]
        library._backups.make()
    with closing(sqlite3.connect(tmp_path / "backups" / today)) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert copy.execute("SELECT COUNT(*) FROM labels").fetchone() == (60,)
    monkeypatch.setattr("components.library.backups.LIBRARY_BACKUPS", 0)
    with Library.open(tmp_path / "none") as library:
        library._backups.make()
    assert not (tmp_path / "none" / "backups").exists()


def test_the_thread_makes_the_backup_and_an_ephemeral_disk_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.library.backups._FIRST_SECONDS", 0)
    with Library.open(tmp_path / "stays") as library, Library.open(tmp_path / "lost", ephemeral=True):
        while not (tmp_path / "stays" / "backups").exists() or not any(
            name.startswith("library-") for name in backed_up(tmp_path / "stays")
        ):
            library._backups._stop.wait(0.02)
    assert not (tmp_path / "lost" / "backups").exists()


def damage(path: Path, fraction: float, pages: int) -> None:
    """Overwrite ``pages`` pages from this fraction of the file on."""
    content = bytearray(path.read_bytes())
    start = int(len(content) * fraction) // 4096 * 4096
    content[start : start + 4096 * pages] = b"\xa5" * (4096 * pages)
    path.write_bytes(content)


@pytest.mark.parametrize("fraction", [0.5, *(pytest.param(fraction / 20, marks=pytest.mark.exhaustive) for fraction in range(1, 20))])
def test_a_damaged_library_comes_back_with_what_is_new_since_the_backup(tmp_path: Path, fraction: float) -> None:
    with Library.open(tmp_path) as library:
        library.add_result(report("org/m0", id="a" * 64), public=True)
        fill(library)
        library._backups.make()
        fill(library, LABELS)
        flag = library.add_flag(library.history("org/m0")[0].label.id, FLAG_REASONS[0], BOB).item
        local = library.local_identity("secret")
    (backup,) = (tmp_path / "backups").iterdir()
    good = backup.read_bytes()
    damage(tmp_path / FILE, fraction, 12)
    backup.unlink()
    opens = True
    try:
        with Library.open(tmp_path) as library, pytest.raises(LibraryUnavailable, match="mantissa library restore"):
            library._backups.make()
    except LibraryUnavailable as error:
        opens = "mantissa library restore" not in str(error)
    assert backed_up(tmp_path) == []  # a copy of what is damaged is no backup
    backup.write_bytes(good)
    made = restore(tmp_path)
    assert made.backup in backup.name and made.results == 1
    assert not made.whole or made.labels == 59 + 2 * LABELS  # indices only were damaged
    least = 59 + (1.5 if opens else 1) * LABELS  # without its schema SQLite reaches no row of a file
    with Library.open(tmp_path) as library:
        assert least <= library.counts().labels == made.labels <= 59 + 2 * LABELS
        assert all(library.consensus(f"org/m{number}").precision == "bf16" for number in range(LABELS))
        assert library.result("a" * 64) == report("org/m0", id="a" * 64).model_dump_json().encode()
        assert library.flags(flag.label) in ((flag,), ()) and library.local_identity("secret") == local
        library.add_label("org/new", "bf16", LINK, ANN)
    with closing(sqlite3.connect(tmp_path / FILE)) as restored:
        assert restored.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert (tmp_path / made.aside / FILE).is_file()


def test_nothing_is_lost_by_restoring_what_is_sound(tmp_path: Path) -> None:
    with Library.open(tmp_path) as library:
        library.add_label("org/name", "bf16", LINK, ANN)
        library.add_result(report("org/name", id="a" * 64), "cd" * 32, public=True)
        before, history = library.counts(), library.history("org/name")
    made = restore(tmp_path)
    assert made.whole and made.backup == ""
    with Library.open(tmp_path) as library:
        assert (library.counts(), library.history("org/name")) == (before, history)
        assert [row.result.id for row in library.find("cd" * 32)] == ["a" * 64]


def test_what_cannot_be_read_at_all_and_what_is_gone_come_back_from_the_newest_sound_backup(tmp_path: Path) -> None:
    with pytest.raises(LibraryUnavailable, match="neither a library nor a backup"):
        restore(tmp_path)
    with Library.open(tmp_path) as library:
        library.add_label("org/name", "bf16", LINK, ANN)
        library._backups.make()
    (tmp_path / "backups" / "library-9999-01-01.sqlite3").write_bytes(b"no database " * 1000)
    (tmp_path / FILE).write_bytes(b"no database " * 1000)
    for whole in (False, True):
        assert restore(tmp_path).whole == whole
        with Library.open(tmp_path) as library:
            assert library.consensus("org/name").precision == "bf16"
        (tmp_path / FILE).unlink()


def test_a_library_in_use_is_not_restored_and_one_being_restored_not_opened(tmp_path: Path) -> None:
    hold = "import sys; from pathlib import Path; from components.library import Library; Library.open(Path(sys.argv[1])); print(); input()"
    with Library.open(tmp_path) as library:
        library._backups.make()
    app = subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert app.stdout is not None and app.stdout.readline() == b"\n"
        with pytest.raises(LibraryUnavailable, match="in use: stop the app"):
            restore(tmp_path)
    finally:
        app.communicate(b"\n", timeout=100)
    held = database.hold(tmp_path, "", alone=True)
    assert held is not None
    with pytest.raises(LibraryUnavailable, match="being restored"):
        Library.open(tmp_path)
    os.close(held)
    assert restore(tmp_path).whole


@pytest.mark.parametrize("gone", ["missing", "empty"])
def test_a_lost_file_is_said_until_it_is_restored_and_its_backups_stay(tmp_path: Path, gone: str) -> None:
    with Library.open(tmp_path) as library:
        library.add_label("org/name", "bf16", LINK, ANN)
        visitor = library.local_identity("secret")
        library._backups.make()
        assert library.state().problem == ""
    (today,) = backed_up(tmp_path)
    (tmp_path / "backups" / today).rename(tmp_path / "backups" / "library-2026-01-01.sqlite3")
    (tmp_path / FILE).unlink()
    if gone == "empty":
        (tmp_path / FILE).touch()
    for number in range(2):
        with Library.open(tmp_path) as library:
            assert "run mantissa library restore" in library.state().problem
            library.add_label(f"org/new{number}", "bf16", LINK, ANN)
            with pytest.raises(LibraryUnavailable, match="missing or empty"):
                library._backups.make()
    assert backed_up(tmp_path) == ["library-2026-01-01.sqlite3"]
    restore(tmp_path)
    with Library.open(tmp_path) as library:
        library._backups.make()
        assert library.state().problem == "" and library.counts().labels == 59 + 3 and library.local_identity("secret") == visitor


def test_damage_that_a_request_met_is_remembered(tmp_path: Path) -> None:
    with Library.open(tmp_path) as library:
        fill(library)
    damage(tmp_path / FILE, 0.2, 40)
    with Library.open(tmp_path) as library:
        library.state()
        with pytest.raises(LibraryUnavailable, match="damaged"):
            [library.history(f"org/m{number}") for number in range(LABELS)]
        with pytest.raises(LibraryUnavailable, match="mantissa library restore"):
            library.state()


def test_a_full_disk_is_said_until_something_is_written(tmp_path: Path) -> None:
    with Library.open(tmp_path) as library:
        with library._database.write() as connection:  # the only connection, used again by the next one
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(LibraryUnavailable, match="disk is full"):
            fill(library)
        with library._database.write() as connection:  # without a change
            connection.execute("DELETE FROM labels WHERE id = ''")
        assert "disk is full" in library.state().problem
        with library._database.read() as connection:
            connection.execute("PRAGMA max_page_count = 1000000")
        library.add_label("org/name", "bf16", LINK, ANN)
        assert library.state().problem == ""


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
@pytest.mark.parametrize("suffix", ["", "-wal"], ids=["file", "log"])
def test_a_file_that_was_deleted_or_replaced_takes_nothing_more(tmp_path: Path, suffix: str, replaced: bool) -> None:
    with Library.open(tmp_path) as library:
        library.add_label("org/name", "bf16", LINK, ANN)
        path = tmp_path / f"{FILE}{suffix}"
        content = path.read_bytes()
        path.unlink()
        if replaced:
            path.write_bytes(content)
        for use in (lambda: library.add_label("org/other", "bf16", LINK, ANN), library.state, lambda: library.consensus("org/name")):
            with pytest.raises(LibraryUnavailable, match="deleted or replaced"):
                use()


def test_a_library_that_may_not_be_written_is_shown(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from analyzers.core.errors import LibraryUnavailable
from components.library import Identity, Library
ann, LINK = Identity.login("ann"), "https://example.org/paper"
for folder in sys.argv[1:]:
    with Library.open(Path(folder), "org/library", token="hf_x") as library:
        print(library.consensus("org/name").precision, library.counts().labels, library.state().problem)
        for add in (lambda: library.add_label("org/name", "fp16", LINK, ann), lambda: library.add_flag("0" * 64, "another model", ann)):
            try:
                add()
            except LibraryUnavailable as error:
                print(error)
        library.publish()
"""
    folders = [tmp_path / "closed", tmp_path / "killed"]
    libraries = [Library.open(folder) for folder in folders]
    for library, folder in zip(libraries, folders, strict=True):
        library.add_label("org/name", "bf16", LINK, ANN)
        if folder.name == "closed":
            library.close()
        for path in (*folder.iterdir(), folder):
            path.chmod(0o555)
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, folders)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(_DROP_CAPABILITY, _OVERRIDE_MODES, 0, 0, 0),
    )
    libraries[1].close()
    said = ran.stdout.splitlines()
    assert len(said) == 6, ran.stderr
    for shown, *refused in (said[:3], said[3:]):
        assert shown.startswith("bf16 60 The library is read-only") and all("nothing can be added" in line for line in refused)
