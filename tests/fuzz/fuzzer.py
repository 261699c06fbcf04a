"""Tries a parser on mutated files up to a number or a time, and reports how to repeat an input that breaks it."""

import hashlib
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from analyzers.core.errors import MantissaError
from tests.fuzz.targets import Target

# Most CPU seconds for reading a few kB, on a busy machine.
SECONDS = 10


class Broken(AssertionError):
    """An outcome other than an answer or a refusal. data: the input."""

    def __init__(self, what: str, data: bytes) -> None:
        super().__init__(what)
        self.data = data


@dataclass
class Tally:
    """Numbers of inputs by outcome. stricter: sentences, without names and numbers, for refused inputs that the library reads."""

    read: int = 0
    compared: int = 0
    refused: int = 0
    stricter: Counter[str] = field(default_factory=Counter)


def examine(target: Target, data: bytes, tally: Tally) -> None:
    """Read ``data`` twice, and once with the library. Raises Broken."""
    began = time.process_time()
    first, second = _read(target, data), _read(target, data)
    if time.process_time() - began > SECONDS:
        raise Broken(f"reading {len(data):,} bytes took {time.process_time() - began:.0f} s", data)
    if first != second:
        raise Broken(f"read twice, it is {first!r:.300} and {second!r:.300}", data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = target.oracle(data)
    refused, ours = first
    if refused:
        tally.refused += 1
        if theirs is not None:
            tally.stricter["".join(c for c in ours if not c.isdigit())[:100]] += 1
        return
    tally.read += 1
    if theirs is not None:
        tally.compared += 1
        if ours != theirs:
            raise Broken(f"it reads {ours!r:.600}, and the library {theirs!r:.600}", data)


def _read(target: Target, data: bytes) -> tuple[bool, Any]:
    """Return whether the input was refused, and the sentence or the data read."""
    try:
        return False, target.read(data)
    except MantissaError as error:
        sentence = str(error)
        if len(sentence) > 1500 or not sentence.isprintable():
            raise Broken(f"the sentence is not printable, or too long: {sentence!r:.300}", data) from None
        return True, sentence
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {error!s:.300}", data) from error


def fuzz(target: Target, seed: int, until: Callable[[int], bool]) -> Tally:
    """Examine mutations of the corpus drawn from ``seed`` until ``until`` (of their number) holds. Raises Broken."""
    seeds, tally, number = target.corpus(), Tally(), 0
    while not until(number):
        # each input has its own generator, so that it can be repeated alone
        data = target.vary(Random(f"{target.name} {seed} {number}"), seeds)
        try:
            examine(target, data, tally)
        except Broken as broken:
            name = hashlib.sha256(data).hexdigest()[:12]
            again = f"repeat with: python -m tests.fuzz {target.name} --seed {seed} --number {number}"
            raise Broken(f"{target.name}: {broken}; {again}; keep it as tests/fuzz/corpus/{target.name}/{name}", data) from broken
        number += 1
    return tally
