"""No hostile file runs anything, takes memory without bound, or ends in anything but a sentence."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analyzers.checkpoints.formats.pickles.torch_file import read_pickled
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded, UnsupportedWeights
from tests.attacks.pickles import ATTACKS, CANARY, FLOOD, FLOODS, SOUND, zipped
from tests.checkpoints.counting_file import MemoryFile

ROOT = Path(__file__).parents[3]
WEIGHT = ["weight", "F32", [4], bytes(16).hex()]

# Archives that two readers may see differently: what is read is in the file.
HARMLESS = {
    f"zip_{name}"
    for name in (
        "appended", "polyglot", "count_lying", "local_name_differs", "version_digits", "wide_end_elsewhere",
        "wide_end_lying_count", "name_upwards",
    )
}  # fmt: skip

# Reads every attack in a process that notes whatever Python tells of while it does so, and how much memory it took.
_WITNESS = """
import json, resource, sys
from analyzers.core import limits
# Fewer tensors than by default are the limit, so that names without end reach it in a tenth of the time.
limits.PICKLE_OPCODES, limits.TENSORS = int(sys.argv.pop(1)), 100_000
from analyzers.checkpoints.formats.pickles.torch_file import read_pickled
from analyzers.core.errors import MantissaError
from tests.attacks.pickles import ATTACKS, FLOODS, SOUND, zipped
from tests.checkpoints.counting_file import MemoryFile

seen, watching = [], False
def hook(event, arguments):
    if watching and not event.startswith(("sys._getframe", "gc.", "object.__", "time.")):
        seen.append(event)
sys.addaudithook(hook)
files = {"sound": zipped(SOUND)} | {attack.name: attack.data for attack in ATTACKS}
if sys.argv[1:] == ["floods"]:
    files = {name: zipped(stream) for name, stream in FLOODS.items()}
read_pickled(MemoryFile(files["sound"])) if "sound" in files else None
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = {}
for name, data in files.items():
    seen.clear()
    watching = True
    header = said = None
    try:
        header = read_pickled(MemoryFile(data, "pickle.bin"), 4)
    except MantissaError as error:
        said = [type(error).__name__, str(error)]
    except BaseException as error:
        said = ["CRASH", repr(error)]
    watching = False
    found[name] = {"said": said, "seen": sorted(set(seen))}
    if header is not None:
        tensors = [[each.name, each.dtype, each.shape, data[each.start : each.stop].hex()] for each in header.tensors]
        found[name] |= {"tensors": tensors, "notes": {note.code: note.values for note in header.notes}}
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"found": found, "kib": after - before}))
"""


def _witnessed(folder: Path, *arguments: str, opcodes: int = 300_000) -> dict[str, Any]:
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", _WITNESS, str(opcodes), *arguments]
    run = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=110, check=True)
    witnessed = json.loads(run.stdout)
    assert isinstance(witnessed, dict)
    return witnessed


@pytest.fixture(scope="module")
def witnessed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("attacks")
    found = _witnessed(folder)
    assert list(folder.iterdir()) == []
    return found


def test_sound_tensors_are_read_and_calls_next_to_them_named(witnessed: dict[str, Any]) -> None:
    assert witnessed["found"]["sound"] == {"said": None, "seen": [], "tensors": [WEIGHT], "notes": {}}
    calls = [attack for attack in ATTACKS if attack.opaque]
    assert len(calls) == 6
    for attack in calls:
        found = witnessed["found"][attack.name]
        assert found["said"] is None, (attack.name, found)
        assert found["tensors"] == [WEIGHT] and found["notes"]["opaque"]["classes"] == list(attack.opaque)
    for attack in ATTACKS:
        if attack.names:
            assert [tensor[0] for tensor in witnessed["found"][attack.name]["tensors"]] == list(attack.names)


def test_every_other_attack_is_refused_in_one_sentence_that_names_the_file(witnessed: dict[str, Any]) -> None:
    assert len(witnessed["found"]) == len(ATTACKS) + 1
    for attack in ATTACKS:
        said = witnessed["found"][attack.name]["said"]
        if attack.opaque or attack.names:
            continue
        if said is None:
            assert attack.name in HARMLESS and witnessed["found"][attack.name]["tensors"] == [WEIGHT], attack.name
            continue
        assert said[0] in {"InvalidCheckpoint", "UnsupportedWeights", "LimitExceeded"}, (attack.name, said)
        assert said[1].startswith('"pickle.bin" ') and len(said[1]) < 400 and said[1].isprintable(), (attack.name, said)


def test_no_attack_does_anything_python_would_tell_of(witnessed: dict[str, Any]) -> None:
    assert {name: found["seen"] for name, found in witnessed["found"].items() if set(found["seen"]) - {"builtins.id"}} == {}


def test_memory_of_all_attacks_together_is_bounded(witnessed: dict[str, Any]) -> None:
    assert witnessed["kib"] < 600_000


def test_the_corpus_is_live(tmp_path: Path) -> None:
    """What the reader refuses does run in Python's own unpickler: the payloads are real."""
    live = next(attack for attack in ATTACKS if attack.name == "live_reduce")
    content = live.data[live.data.index(b"\x80") :]
    alone = [sys.executable, "-S", "-c", "import pickle, sys\npickle.load(sys.stdin.buffer)"]  # without torch: the tensors come later
    subprocess.run(alone, input=content, cwd=tmp_path, timeout=110, check=False, stderr=subprocess.DEVNULL)
    assert (tmp_path / CANARY).read_text().strip() == "run"


def test_floods_of_objects_end_at_the_limit(tmp_path: Path) -> None:
    opcodes = FLOOD // 2
    found = _witnessed(tmp_path, "floods", opcodes=opcodes)
    said = {name: found["found"][name]["said"] for name in FLOODS}
    read = {"long_texts", "numbers"}  # as large as they are, they hold no tensors
    assert {name for name, words in said.items() if words[0] == "UnsupportedWeights"} == read
    assert {name for name, words in said.items() if words[0] == "LimitExceeded"} == FLOODS.keys() - read
    assert found["kib"] * 1024 < 400 * opcodes


def test_a_file_cut_off_anywhere_is_refused() -> None:
    data = zipped(SOUND)
    for length in range(len(data)):
        with pytest.raises((InvalidCheckpoint, UnsupportedWeights, LimitExceeded)):
            read_pickled(MemoryFile(data[:length]))
