"""No hostile file runs anything, takes memory without bound, or ends in anything but a sentence."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analyzers.checkpoints.formats.pickles.constructors import CONSTRUCTORS
from analyzers.checkpoints.formats.pickles.torch_file import read_pickled
from analyzers.checkpoints.reference import quoted
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded, UnsupportedWeights
from tests.attacks.pickles import ATTACKS, CANARY, FLOOD, FLOODS, GADGETS, SOUND, SOUND_LEGACY, zipped
from tests.checkpoints.counting_file import MemoryFile

ROOT = Path(__file__).parents[3]

# Archives that two readers may see differently, and calls of known functions in an odd way: nothing runs, and what is read is in the file.
HARMLESS = {
    "shared_names",
    *(f"zip_{name}" for name in (
        "appended", "comment", "polyglot", "count_less", "count_more", "count_lying", "local_name_differs", "local_size_differs",
        "no_version", "version_11", "version_text", "version_digits",
        "wide_end_elsewhere", "wide_end_lying_count", "wide_end_lying_size", "name_upwards", "name_absolute", "name_control", "name_long",
        "two_archives", "script_code_overlaps",
    )),
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
        header = read_pickled(MemoryFile(data, "pytorch_model.bin"), 4)
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


def test_a_sound_file_of_the_same_making_is_read(witnessed: dict[str, Any]) -> None:
    assert witnessed["found"]["sound"]["said"] is None
    for data in (zipped(SOUND), SOUND_LEGACY):
        ((name, dtype, shape, start, stop, strides),) = read_pickled(MemoryFile(data)).tensors
        assert (name, dtype, shape, stop - start, strides) == ("weight", "F32", (4,), 16, None)
        assert data[start:stop] == bytes(16)


def test_calls_next_to_a_sound_tensor_are_named_and_the_tensor_is_read(witnessed: dict[str, Any]) -> None:
    calls = [attack for attack in ATTACKS if attack.opaque]
    assert len(calls) == 20
    for attack in calls:
        found = witnessed["found"][attack.name]
        assert found["said"] is None, (attack.name, found)
        assert found["tensors"] == [["weight", "F32", [4], bytes(16).hex()]]
        assert found["notes"]["opaque"]["classes"] == list(attack.opaque)


def test_tensors_with_strange_keys_are_read(witnessed: dict[str, Any]) -> None:
    strange = [attack for attack in ATTACKS if attack.names]
    assert len(strange) == 24
    for attack in strange:
        assert [tensor[0] for tensor in witnessed["found"][attack.name]["tensors"]] == list(attack.names)


def test_every_other_attack_is_refused_in_one_sentence_that_names_the_file(witnessed: dict[str, Any]) -> None:
    assert len(witnessed["found"]) == len(ATTACKS) + 1 > 500
    allowed = {"InvalidCheckpoint", "UnsupportedWeights", "LimitExceeded"}
    for attack in ATTACKS:
        if attack.opaque or attack.names:
            continue
        said = witnessed["found"][attack.name]["said"]
        if said is None and attack.name in HARMLESS:
            assert witnessed["found"][attack.name]["tensors"] == [["weight", "F32", [4], bytes(16).hex()]] * attack.name.startswith("zip_")
            continue
        assert said is not None and said[0] in allowed, (attack.name, said)
        assert said[1].startswith('"pytorch_model.bin" ') and len(said[1]) < 400 and said[1].isprintable(), (attack.name, said)


def test_no_attack_does_anything_python_would_tell_of(witnessed: dict[str, Any]) -> None:
    # Threads look up several places at once; identities tell containers apart.
    own = {"_thread.start_new_thread", "_thread.start_joinable_thread", "builtins.id"}
    told = {name: set(found["seen"]) - own for name, found in witnessed["found"].items()}
    assert {name: events for name, events in told.items() if events} == {}


def test_memory_of_all_attacks_together_is_bounded(witnessed: dict[str, Any]) -> None:
    assert witnessed["kib"] < 600_000


def test_the_corpus_is_live(tmp_path: Path) -> None:
    """What the reader refuses does run in Python's own unpickler: the payloads are real."""
    live = next(attack for attack in ATTACKS if attack.name == "live_reduce_legacy")
    program = "import io, pickle, sys\nfile = io.BytesIO(sys.stdin.buffer.read())\nfor _ in range(4):\n    pickle.load(file)"
    alone = [sys.executable, "-S", "-c", program]  # without torch, whose tensors come after the payload
    subprocess.run(alone, input=live.data, cwd=tmp_path, timeout=110, check=False, stderr=subprocess.DEVNULL)
    assert (tmp_path / CANARY).read_text().strip() == "run"


def test_floods_of_objects_end_at_the_limit(tmp_path: Path) -> None:
    opcodes = FLOOD // 2
    found = _witnessed(tmp_path, "floods", opcodes=opcodes)
    said = {name: found["found"][name]["said"] for name in FLOODS}
    read = {"long_texts", "numbers"}  # as large as they are, they hold no tensors
    assert {name for name, words in said.items() if words[0] == "UnsupportedWeights"} == read
    assert {name for name, words in said.items() if words[0] == "LimitExceeded"} == FLOODS.keys() - read
    assert found["kib"] * 1024 < 400 * opcodes


@pytest.mark.parametrize(
    ("module", "name"),
    [
        gadget
        for gadget in GADGETS
        if len(text := ".".join(gadget)) < 60 and text.isascii() and " " not in text and text not in CONSTRUCTORS
    ],
)
def test_what_is_asked_for_is_named(module: str, name: str) -> None:
    attack = next(attack for attack in ATTACKS if attack.name == f"global {f'{module[:40]}.{name[:40]}'!a}")
    with pytest.raises(UnsupportedWeights) as caught:
        read_pickled(MemoryFile(attack.data))
    assert quoted(f"{module}.{name}", 200) in str(caught.value)


@pytest.mark.parametrize("data", [zipped(SOUND), SOUND_LEGACY], ids=["zip", "legacy"])
def test_a_file_cut_off_anywhere_is_refused(data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises((InvalidCheckpoint, UnsupportedWeights, LimitExceeded)):
            read_pickled(MemoryFile(data[:length]))
