"""Parses references: a Hub repository, a built-in sample or, on the command line, a local path.

    org/name   name   org/name@revision   name@revision   sample:NAME   ./path   /path   whatever `pasted_text` reads
    BASE+ADAPTER   BASE+0.7*ADAPTER+0.3*ADAPTER   each of them one of the above

A path is taken literally, including '@'; a name without ./ is a path if it exists, as in transformers, unless it is an address on the Hub.
Everything else is refused.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NoReturn

from analyzers.core import limits, pasted_text
from analyzers.core.errors import InvalidReference
from analyzers.core.terminal import quoted as quoted
from analyzers.core.terminal import quoted_names as quoted_names

_WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_ID = re.compile(rf"{_WORD}(?:/{_WORD})?")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,249}")
_SAMPLE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?")
_WEIGHT = re.compile(r"[+-]?[0-9]{1,6}(\.[0-9]{0,9})?|[+-]?\.[0-9]{1,9}")
_MOST_ADAPTERS = 8
_LONGEST_SUM = 9 * limits.REFERENCE_LENGTH
HUB_TOKEN = re.compile(r"hf_[A-Za-z0-9]{20,}")


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed reference.

    kind: "hub", "sample", "local", "memory", or "merged" for a base with adapters; name: the repository id, the sample's name, the path as
    typed or the whole text; revision: branch, tag, ``refs/pr/N`` or commit of a Hub repository, None for its default branch; parts: of a
    merged one, the references of the base and of each adapter.
    """

    kind: Literal["hub", "sample", "local", "memory", "merged"]
    name: str
    revision: str | None = None
    parts: "tuple[Reference, ...]" = ()

    @property
    def all(self) -> "tuple[Reference, ...]":
        """The references of which it consists: its parts, or itself."""
        return self.parts or (self,)

    @property
    def full_name(self) -> str:
        """The reference without a revision: ``org/name``, ``sample:NAME``, or a path."""
        return f"sample:{self.name}" if self.kind == "sample" else self.name


@dataclass(frozen=True, slots=True)
class Summand:
    """A part of BASE+ADAPTER. weight: of an adapter; 1 for the base."""

    text: str
    weight: float = 1.0


def parse_reference(text: str, local: bool, kind: pasted_text.Kind = "model") -> Reference:
    """Parse a reference, or what is pasted for it (`pasted_text`).

    local: whether paths are allowed (command line only); kind: what an address must be the address of. Raises InvalidReference, whose
    message says what would be valid.
    """
    if kind == "model" and len(parts := summands(text, local)) > 1:
        found = tuple(parse_reference(part.text, local) for part in parts)
        names = (each.full_name for each in found)
        return Reference("merged", joined(zip(names, (part.weight for part in parts), strict=True)), parts=found)
    text = text.strip()
    if HUB_TOKEN.search(text):
        raise InvalidReference("This looks like an access token, which is a secret and no model id: give org/name.")
    own = text.startswith(("sample:", "memory:")) or pasted_text.is_address(text)
    text = pasted_text.plain(text, kind)
    if local and (text.startswith(("./", "/")) or (not own and _exists(text))) and "\0" not in text:
        return Reference("local", text)
    if local and text.startswith("memory:"):
        return Reference("memory", text)
    if text.startswith("sample:") and _SAMPLE.fullmatch(name := text.removeprefix("sample:")):
        return Reference("sample", name)
    name, at, revision = text.partition("@")
    if not is_repository_id(name) or (at and not is_revision(revision)):
        _refuse(text, "is not a model id: give org/name, org/name@revision or sample:NAME; local paths (./x) work on the command line only")
    return Reference("hub", name, revision or None)


def summands(text: str, local: bool) -> list[Summand]:
    """Split BASE+ADAPTER+WEIGHT*ADAPTER into its parts; any other text is one part.

    A "+" inside the name of a file or a revision is no sign: what follows one begins like a reference, or with ``local`` is a path that
    exists, and a path that exists with the "+" in it is a path. local: as in `parse_reference`. Raises InvalidReference for a weight that
    is not a number, or more than 8 adapters.
    """
    if len(text) > _LONGEST_SUM or "(" in text or (local and _exists(text)):
        return [Summand(text)]
    first, *others = text.split("+")
    parts = [first]
    for addend in others:
        together = f"{parts[-1]}+{addend}"
        separate = len(pasted_text.addends(f"+{addend}")) > 1
        if local:
            separate |= "@" not in parts[-1] and _exists(addend.rpartition("*")[2].strip())
            separate &= not _exists(together) or _exists(parts[-1])
        if separate:
            parts.append(addend)
        else:
            parts[-1] = together
    if len(parts) == 1:
        return [Summand(text)]
    if len(parts) > 1 + _MOST_ADAPTERS:
        _refuse(text, f"names {len(parts) - 1} adapters, more than {_MOST_ADAPTERS}")
    found = [Summand(parts[0].strip())]
    for addend in parts[1:]:
        weight, star, name = addend.strip().rpartition("*")
        number = _WEIGHT.fullmatch(weight.strip())
        if star and (number is None or float(weight) == 0):
            _refuse(text, f"has the weight {quoted(weight)}: give a decimal number other than 0, as in BASE+0.7*ADAPTER")
        found.append(Summand(name.strip(), float(weight) if star else 1.0))
    return found


def joined(parts: Iterable[tuple[str, float]]) -> str:
    """Write BASE+WEIGHT*ADAPTER of references with their weights."""
    return "+".join(name if weight == 1 else f"{weight:.12g}*{name}" for name, weight in parts)


def with_commits(ref: str, commit: str) -> str:
    """Return the canonical ``ref`` of a checkpoint, also of a merged one, with its commits; paths and samples as they are."""
    parts, commits = summands(ref, local=True), commit.split("+")
    if len(parts) != len(commits):
        return ref
    elsewhere = ("sample:", "memory:", "/")
    return joined(
        (part.text if part.text.startswith(elsewhere) else f"{part.text}@{of}", part.weight)
        for part, of in zip(parts, commits, strict=True)
    )


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)  # noqa: PTH110 - Path.exists raises if a folder may not be entered
    except ValueError:  # a null character
        return False


def is_repository_id(name: object) -> bool:
    """Return whether ``name`` is a repository id, by the rules of the Hub itself."""
    if not isinstance(name, str) or ".." in name or "--" in name or name.endswith(".git"):
        return False
    return _ID.fullmatch(name) is not None


def is_revision(text: str) -> bool:
    """Return whether ``text`` may name a branch, a tag, ``refs/pr/N`` or a commit."""
    odd = ".." in text or "//" in text or "/." in text or text.endswith(("/", ".", ".lock"))
    return not odd and _REVISION.fullmatch(text) is not None


def _refuse(text: str, reason: str) -> NoReturn:
    raise InvalidReference(f"{quoted(text)} {reason}.")
