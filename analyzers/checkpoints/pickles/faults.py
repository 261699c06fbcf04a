"""Faults of a pickled file; `read.read_pickled` adds the name of the file."""

from typing import NoReturn

from analyzers.checkpoints.reference import quoted


class Damaged(Exception):
    """The file contradicts itself or its format; the text ends the sentence "FILE is damaged: ..."."""


class Refused(Exception):
    """The file may be sound and is not read; the text ends a sentence that begins with the file's name."""


class Excess(Exception):
    """The file is larger than a limit; the text ends a sentence that begins with the file's name."""


def refuse_global(module: str, name: str) -> NoReturn:
    """Refuse a global that no state dict needs, by the name that the pickle gives it."""
    raise Refused(
        f"asks for {quoted(f'{module}.{name}')}, which is not part of a state dict, and was not loaded: "
        "save the state_dict of the model alone, best as safetensors."
    )
