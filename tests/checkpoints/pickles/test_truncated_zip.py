"""A zip file that is cut off says what is known of the bytes that it lacks."""

import pytest
import torch

from analyzers.checkpoints.formats.pickles import read_pickled
from analyzers.errors import InvalidCheckpoint
from tests.checkpoints.counting_file import MemoryFile
from tests.checkpoints.pickles.pickled_files import saved

DATA = saved({f"layers.{number}.weight": torch.ones(1_000 + number) for number in range(5)})
TENSORS = 4 * sum(1_000 + number for number in range(5))
DIRECTORY = DATA.index(b"PK\1\2")


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (40, r"after 40 bytes: the zip directory at its end is missing, and how much else .* in or before data\.pkl"),
        (300, r"after 300 bytes: the zip directory at its end is missing, and how much else .* in or before data\.pkl"),
        (2_000, r": its zip directory is missing, and its tensors need at least 20,\d{3} bytes .*: at least 18,\d{3} are missing"),
        (DIRECTORY, r": the zip directory at its end is missing, and its tensors take 20,\d{3} bytes and may all be there"),
        (DIRECTORY + 5, ": the zip directory at its end is missing, and its tensors take"),
        (len(DATA) - 1, ": the zip directory at its end is missing, and its tensors take"),
    ],
)
def test_a_cut(length: int, said: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=rf'^"m\.bin" is cut off.*{said}.* Upload or download it again\.$'):
        read_pickled(MemoryFile(DATA[:length], "m.bin"))


def test_the_bytes_said_to_be_missing_are_no_more_than_those_cut() -> None:
    for length in range(600, TENSORS, 997):
        with pytest.raises(InvalidCheckpoint, match="are missing") as caught:
            read_pickled(MemoryFile(DATA[:length], "m.bin"))
        missing = int(str(caught.value).rpartition(" are missing")[0].rpartition(" ")[2].replace(",", ""))
        assert TENSORS - length < missing <= len(DATA) - length


def test_appended_bytes() -> None:
    with pytest.raises(InvalidCheckpoint, match="it has 2 bytes after the end of its zip directory, where torch writes none"):
        read_pickled(MemoryFile(DATA + b"xx", "m.bin"))
