"""Parses references: a Hub repository, a built-in sample or, on the command line, a local path.

    org/name   name   org/name@revision   name@revision   sample:NAME   ./path   /path   whatever `pasted_text` reads
    BASE+ADAPTER   BASE+0.7*ADAPTER+0.3*ADAPTER   each of them one of the above

A path is taken literally, including '@'; a name without ./ is a path if it exists, as in transformers, unless it is an address on the Hub.
Everything else is refused with the reason.
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

_WORD = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,249}")
_SAMPLE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?")
_WEIGHT = re.compile(r"[+-]?[0-9]{1,6}(\.[0-9]{0,9})?|[+-]?\.[0-9]{1,9}")
_MOST_ADAPTERS = 8
HUB_TOKEN = re.compile(r"hf_[A-Za-z0-9]{20,}")
_EXAMPLE = "for example Qwen/Qwen3-0.6B or sample:tiny-bf16"


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
    if not text:
        raise InvalidReference(f"No model was named: give a model id, {_EXAMPLE}.")
    if len(text) > limits.REFERENCE_LENGTH:
        _refuse(text, f"has {len(text):,} characters, more than {limits.REFERENCE_LENGTH}")
    if HUB_TOKEN.search(text):
        raise InvalidReference(f"This looks like an access token, which is a secret and no model id: give a model id, {_EXAMPLE}.")
    local_name = local and not text.startswith(("sample:", "memory:")) and not pasted_text.is_address(text)
    text = pasted_text.plain(text, kind)
    if text.startswith(("./", "/")) or (local_name and _exists(text)):
        return _path(text, local)
    if text in (".", "..", "~") or text.startswith(("../", "~/", ".\\", "..\\")):
        if not local:
            _refuse(text, "is a path: local paths work on the command line only")
        _refuse(text, f"is not a model id: write a local path as {quoted('./' + text) if text[0] == '.' else 'an absolute path, /...'}")
    if text.startswith("sample:"):
        return _sample(text)
    if local and text.startswith("memory:"):
        return Reference("memory", text)
    return _hub(text)


def summands(text: str, local: bool) -> list[Summand]:
    """Split BASE+ADAPTER+WEIGHT*ADAPTER into its parts; any other text is one part.

    A "+" inside the name of a file or a revision is no sign: what follows one begins like a reference, or with ``local`` is a path that
    exists, and a path that exists with the "+" in it is a path. local: as in `parse_reference`. Raises InvalidReference for a weight that
    is not a number, or more than 8 adapters.
    """
    texts = pasted_text.addends(text)
    if local:
        texts = [part for each in texts for part in _at_paths(each)]
    if len(texts) == 1 or (local and _exists(text)):
        return [Summand(text)]
    parts = texts[:1]
    for addend in texts[1:]:
        if local and _exists(f"{parts[-1]}+{addend}") and not _exists(parts[-1]):
            parts[-1] += f"+{addend}"
        else:
            parts.append(addend)
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


def _at_paths(text: str) -> list[str]:
    """Split ``text`` at each "+" outside a revision after which a path begins that exists, such as the bare name of a local folder."""
    parts = text.split("+")
    found = parts[:1]
    for part in parts[1:]:
        if "@" not in found[-1] and _exists(part.rpartition("*")[2].strip()):
            found.append(part)
        else:
            found[-1] += f"+{part}"
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


def _path(text: str, local: bool) -> Reference:
    if not local:
        _refuse(text, "is a path: local paths work on the command line only")
    if "\0" in text:
        _refuse(text, "holds a null character, which no path does")
    return Reference("local", text)


def _sample(text: str) -> Reference:
    name = text.removeprefix("sample:")
    if "@" in name:
        _refuse(text, "names a revision, which built-in samples do not have: leave out '@' and what follows")
    if not _SAMPLE.fullmatch(name) or ".." in name:
        _refuse(text, "is not a built-in sample: their names look like sample:tiny-bf16")
    return Reference("sample", name)


def _hub(text: str) -> Reference:
    name, at, revision = text.partition("@")
    if not _is_id(name):
        _refuse(
            text,
            "is not a model id: give org/name, of letters, digits, '-', '_' and '.', or on the command line a path beginning with ./ or /",
        )
    if not at:
        return Reference("hub", name)
    bad = not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision or "/." in revision
    if bad or revision.endswith(("/", ".", ".lock")):
        _refuse(text, "has no usable revision after '@': give a branch, a tag, refs/pr/N or a commit, or leave out the '@'")
    return Reference("hub", name, revision)


def _is_id(name: str) -> bool:
    """Return whether ``name`` is a repository id, by the rules of the Hub itself."""
    parts = name.split("/")
    odd = ".." in name or "--" in name or name.endswith(".git") or name.lower().startswith("sample:")
    return len(parts) <= 2 and not odd and all(len(part) <= 96 and _WORD.fullmatch(part) for part in parts)


def _refuse(text: str, reason: str) -> NoReturn:
    raise InvalidReference(f"{quoted(text)} {reason}.")
