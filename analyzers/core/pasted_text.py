"""Reads what people paste for a checkpoint: an address on the Hub, an id in quotes, or a line of code or a command that names one.

    https://huggingface.co/org/name/tree/REVISION    hf.co/org/name?library=transformers    hf://org/name@REVISION/config.json
    AutoModel.from_pretrained("org/name", revision="v1")    hf download org/name --revision v1    git clone https://huggingface.co/org/name

Each means ``org/name`` or ``org/name@REVISION``; ``main`` is the default and left out, and so is the quantization after a colon. A line
means the one repository that it names, whatever the program. The text is only matched, never opened, and says nothing about other hosts:
hf.co, huggingface.co and the host of HF_ENDPOINT are the Hub, without a user name or a port.
"""

import os
import re
import string
from typing import Literal
from urllib.parse import unquote

from analyzers.core.errors import InvalidReference

Kind = Literal["model", "dataset"]

_LONGEST = 2_000  # Characters of a line of code.
_QUOTES = "\"'`\u2018\u2019\u201c\u201d"
_KINDS = {"models": "model", "datasets": "dataset", "spaces": "Space", "kernels": "kernel", "buckets": "bucket"}
# First parts of addresses that are the Hub's own pages, and no organisations.
_PAGES = {"blog", "chat", "collections", "docs", "join", "learn", "login", "papers", "posts", "pricing", "settings", "tasks"}
# Parts of an address that precede a revision, as huggingface_hub.utils.parse_hf_uri reads them, and those of pages about one.
_VIEWS = {"blame", "blob", "commit", "commits", "delete", "edit", "raw", "resolve", "revision", "tree", "upload"}
_ID = r"[\w.-]+/[\w.-]+"
_REVISION = re.compile(r"refs/(?:pr/\d+|convert/[\w.-]+)(?=/|$)|[^/]*")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{0,15}://|git@|(?:www\.)?(?:huggingface\.co|hf\.co)(?:[:/]|$)", re.IGNORECASE)
_HUB = r"(?:https?://)?(?:(?:www\.)?(?:huggingface\.co|hf\.co){endpoint})/|git@hf\.co:"
_TAG = re.compile(r"(?<=/)([\w.-]+):[\w.-]+$")  # the quantization in org/name:Q4_K_M
# A word of a line of code or a command, and the quoted ones; how such a line names a revision.
_WORD = re.compile(rf"[^\s{_QUOTES}(),;=<>\[\]{{}}]+")
_QUOTED = re.compile(rf"[{_QUOTES}]([\w.-]+(?:/[\w.-]+)?|sample:[\w.-]+)[{_QUOTES}]")
# What makes a line code or a command: a quote or bracket, or a program's name or a key at its beginning.
_QUOTE = re.compile(rf"[{_QUOTES}(]")
_COMMAND = re.compile(r"(?:hf|huggingface-cli|git|vllm|sglang|python3?|docker|ollama|llama-\w+)\s|[\w-]+\s*[:=]\s")
_AT = re.compile(rf"(?:\brevision\s*[=:]|--revision[\s=]|--branch[\s=]|\s-b\s)\s*[{_QUOTES}]?([^\s,){_QUOTES}]+)")
_BULLETS = "-*\u2022"
# A plus between references, not one in a revision or a file name: an id with its organisation, a sample, a path or an address follows.
_ADDEND = r"(?=(?:[^+*/\s]{0,20}\*\s*)?(?:sample:|memory:|\.{0,2}/|[a-z]{2,5}://|[\w.-]+/[\w.-]))"
_PLUS, _SPACE = re.compile(rf"\s*\+\s*{_ADDEND}"), re.compile(rf"(?<=[\w./-]) {_ADDEND}")


def plain(text: str, kind: Kind = "model") -> str:
    """Return the reference that pasted ``text`` means; any other text without the quotes around it.

    Raises InvalidReference for an address that is not of a ``kind`` on the Hub. Its message repeats nothing of it but an id, since an
    address may hold a password.
    """
    text = text.strip()
    if text.startswith(("./", "/")) or len(text) > _LONGEST:  # a path, or nothing that could be one
        return text
    if len(parts := addends(text)) > 1:
        weights = [part.rpartition("*") for part in parts]
        return "+".join(f"{weight}{star}{plain(name, kind)}" for weight, star, name in weights)
    text = _named_in(_bare(text))
    if (found := _of_address(text, kind)) is not None:
        return found[0]
    return text[:-1] if re.fullmatch(rf"{_ID}/", text) else text


def folder_in(text: str) -> str:
    """Return the folder inside the repository that an address names, itself or as that of a file; "" for none, and for any other text."""
    if len(text) > _LONGEST or len(addends(text)) > 1:
        return ""
    try:
        found = _of_address(_named_in(_bare(text)), "model")
    except InvalidReference:
        return ""
    path = "" if found is None else found[1]
    folder, _, last = path.rpartition("/")
    return folder if "." in last else path


def addends(text: str) -> list[str]:
    """Split BASE+ADAPTER at each "+" after which a reference begins, with a weight or without; any other text is one part."""
    return _PLUS.split(text) if len(text) <= _LONGEST and "(" not in text else [text]


def with_plus(text: str) -> str:
    """Return a reference out of a query, in which an unescaped "+" has become a space: ids have none, so that it is one again."""
    return _SPACE.sub("+", text)


def is_address(text: str) -> bool:
    """Tell whether ``text`` is an address on the Hub, which is never a path."""
    return len(text) <= _LONGEST and re.match(rf"hf://|{_HUB.format(endpoint=_endpoint())}", _bare(text), re.IGNORECASE) is not None


def on_hub(text: str) -> str:
    """Return ``text`` as `plain_or_same` writes it, for callers that may read paths: with ``@main`` where its address is also a path.

    An address with a folder stays as it is: the request reads the folder in it.
    """
    name = _kept(text)
    return f"{name}@main" if is_address(text) and "@" not in name and os.path.exists(name) else name  # noqa: PTH110 - never raises


def plain_or_same(text: str, kind: Kind = "model") -> str:
    """Return ``text`` as `plain` writes it, or unchanged if it is refused: whoever opens it gives the reason."""
    try:
        return plain(text, kind)
    except InvalidReference:
        return text


def split(text: str) -> list[str]:
    """Return the references in ``text``: a line, or what a comma outside brackets or a semicolon separates, names one or several."""
    found: list[str] = []
    for line in re.split(r"[\n;]|,(?![^(]*\))", text):
        named = _kept(line.strip().lstrip(_BULLETS).strip(" []"))
        if not re.search(r"[\s(]", named):
            found += [named] * bool(named.strip(_QUOTES))
        elif re.search(r"\(|\bimport\b|#", named):
            found += map(_kept, _names(named))
        else:
            found += [_kept(word) for word in re.split(r"[\s()\[\]]+", named) if word.strip(_QUOTES + _BULLETS)]
    return found


def _kept(text: str) -> str:
    """Return ``text`` as `plain_or_same` writes it, but an address with a folder, which the request reads, as it is."""
    return _bare(text) if folder_in(text) else plain_or_same(text)


def _bare(text: str) -> str:
    """Return ``text`` without quotes, separators and the brackets of an address around it."""
    text = text.strip(_QUOTES + string.whitespace + ",;")
    return text[1:-1] if text[:1] == "<" and text[-1:] == ">" and "://" in text else text


def _endpoint() -> str:
    """Return the alternative of the pattern of the Hub's addresses for the host of HF_ENDPOINT, "" if it is not set."""
    endpoint = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/").rpartition("://")[2]
    return f"|{re.escape(endpoint)}" if endpoint else ""


def _names(line: str) -> list[str]:
    """Return the ids and addresses among the words of a line, each once."""
    words = (str(word) for word in _WORD.findall(line))
    return list(dict.fromkeys(word for word in words if re.fullmatch(rf"{_ID}(?:@[\w./-]+|:[\w.-]+)?", word) or is_address(word)))


def _named_in(line: str) -> str:
    """Return the one repository that a line of code or a command names, with its revision; the line itself if there is not exactly one."""
    if not re.search(r"[\s(]", line) or (_ADDRESS.match(line) and " " not in line):
        return line
    if not _COMMAND.match(line) and not _QUOTE.search(line):
        return line
    named = _names(line) or list(dict.fromkeys(match[1] for match in _QUOTED.finditer(line)))
    if len(named) != 1:
        return line
    (name,) = named
    revision = _AT.search(line)
    at = "" if revision is None or revision[1] == "None" else f"@{revision[1]}"
    if is_address(name):
        return name.removesuffix(".git") + at.replace("/", "%2F")
    return _TAG.sub(r"\1", name) + at


def _of_address(text: str, kind: Kind) -> tuple[str, str] | None:
    """Return the reference in an address and the path in the repository after it; None for another text. Raises InvalidReference."""
    site = re.match(_HUB.format(endpoint=_endpoint()), text, re.IGNORECASE)
    if site is None and not text.lower().startswith("hf://"):
        if _ADDRESS.match(text):
            raise InvalidReference(f"This is not an address of a {kind} on the Hub: give its id, org/name.")
        return None
    address = text[5:] if site is None else text[site.end() :]
    views = set() if site is None else _VIEWS
    path = re.split(r"[?#]", address, maxsplit=1)[0].rstrip(".,;:!)")
    parts = [part for part in path.split("/") if part]
    if views and parts[:1] == ["api"]:
        parts = parts[1:]
    given = _KINDS[parts.pop(0)] if parts and parts[0] in _KINDS else "model"
    odd = not address.isprintable() or " " in address or {".", ".."} & set(unquote(path).split("/"))
    if odd or not parts or (views and parts[0] in _PAGES):
        raise InvalidReference(f"This is not the address of a {kind}: give its id, org/name.")
    if given != kind:
        raise InvalidReference(f"This is the address of a {given}: give the id of a {kind}, org/name.")
    # gpt2/tree/main, but org/tree and org/tree/tree/main
    legacy = "@" in parts[0] or (len(parts) > 2 and parts[1] in views | {"discussions"} and parts[2] not in views)
    words = 1 if legacy else 2
    name, at, revision = "/".join(parts[:words]).partition("@")
    after = "/".join([revision, *parts[words:]] if at else parts[words + 1 :] if parts[words : words + 1] and parts[words] in views else [])
    stated = str(_REVISION.match(after)[0])  # type: ignore[index]  # it matches ""
    revision, inside = unquote(stated), unquote(after[len(stated) + 1 :] if at or views else "/".join(parts[words:]))
    name = _TAG.sub(r"\1", name.removesuffix(".git"))
    reference = name if revision == "main" or not (at or revision) else f"{name}@{revision}"
    if not re.fullmatch(rf"{_ID}|[\w.-]+", name, re.ASCII) or _ADDRESS.match(reference):  # nothing that would be read in another way
        raise InvalidReference(f"This is not the address of a {kind}: give its id, org/name.")
    return reference, inside
