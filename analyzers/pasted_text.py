"""Reads what people paste for a checkpoint: an address on the Hub, a line of code, a command, or an id in quotes.

    https://huggingface.co/org/name/tree/REVISION    hf.co/org/name?library=transformers    hf://org/name@REVISION/config.json
    AutoModel.from_pretrained("org/name", revision="v1")    hf download org/name    git clone https://huggingface.co/org/name
    pipeline("text-generation", model="org/name")    vllm serve org/name    ollama run hf.co/org/name:Q4_K_M    model: org/name

Each means ``org/name`` or ``org/name@REVISION``; ``main`` is the default and left out, and so is the quantization after a colon. A program,
with its imports, means the models that its calls name. The text is only matched, never opened, and says
nothing about other hosts: hf.co, huggingface.co and the host of HF_ENDPOINT are the Hub, without a user name or a port.
"""

import os
import re
import string
from typing import Literal
from urllib.parse import unquote

from analyzers.errors import InvalidReference

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
_CALL = re.compile(
    r"""(?<![\w.])(?:\w+\s*=\s*)?[\w.]*?(?P<function>from_pretrained|load_dataset|snapshot_download|hf_hub_download"""
    r"""|pipeline|LLM|SentenceTransformer)\(\s*(?:(?:task\s*=\s*)?["'][\w-]+["'],\s*(?=model\s*=))?"""
    r"""(?:(?:pretrained_model_name_or_path|repo_id|path|model)\s*=\s*)?(?P<quote>["'])(?P<name>[^"'\s]+)(?P=quote)"""
    r"""(?P<rest>(?:[^()]|\([^()]*\))*)\)?(?:\.\w+\([^()]*\))*"""
)
_DOWNLOAD = re.compile(r"(?:hf|huggingface-cli)\s+download\s+(?P<name>[^\s-]\S*)(?P<rest>(?:(?!\s(?:hf|huggingface-cli|git)\s)[^\n;&|])*)")
_CLONE = re.compile(
    r"(?:GIT_LFS_SKIP_SMUDGE=1\s+)?git\s+clone\s+"
    r"(?:(?:-b\s+|--branch[\s=])(?P<branch>[^\s-]\S*)\s+|(?!-b\s|--branch)-\S+\s+(?:\d+\s+)?)*(?P<name>\S+://\S+|git@\S+)"
)
# Commands that the Hub shows under "Use this model". Those of Ollama and Docker name their own libraries unless they name the Hub's host.
_SERVE = re.compile(
    r"(?:vllm\s+serve|(?P<ollama>ollama\s+(?:run|pull)|docker\s+model\s+(?:run|pull))|llama-(?:server|cli)\s+(?:-hf|--hf-repo)"
    r"|(?:python3?\s+-m\s+)?sglang(?:\.launch_server|\s+serve)\s+--model-path)[\s=]+"
    r"""["']?(?P<name>[^\s"'-][^\s"']*)["']?(?P<rest>(?:\s+--?[\w-]+(?:[\s=][^\s,;-][^\s,;]*)?)*)"""
)
_LINK = re.compile(r"\[[^][]*\]\((?P<name>https?://[^\s()]+)\)")  # of Markdown
_KEY = re.compile(r"""(?<![\w.])["']?(?:base_model|model(?:_id|_name(?:_or_path)?)?|repo_id)["']?\s*[:=]\s*(?=["']?[\w.-]+/)""")
_TAG = re.compile(r"(?<=/)([\w.-]+):[\w.-]+$")  # the quantization in org/name:Q4_K_M
_PROGRAM = re.compile(r"\bimport\s+\w")
_BULLETS = "-*=\u2022"
# A plus between references, not one in a revision or a file name: an id with its organisation, a sample, a path or an address follows.
_ADDEND = r"(?=(?:[^+*/\s]{0,20}\*\s*)?(?:sample:|memory:|\.{0,2}/|[a-z]{2,5}://|[\w.-]+/[\w.-]))"
_PLUS, _SPACE = re.compile(rf"\s*\+\s*{_ADDEND}"), re.compile(rf"(?<=[\w./-]) {_ADDEND}")
_OPTION = r"""\b{name}(?:\s*=\s*|\s+)["']?([^\s"',)]+)"""


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
    text = _bare(_without_code(text))
    match = re.match(_HUB.format(endpoint=_endpoint()), text, re.IGNORECASE)
    if match is not None:
        return _of_address(text[match.end() :], kind, _VIEWS)
    if text.lower().startswith("hf://"):
        return _of_address(text[5:], kind, set())
    if text.startswith("ollama://"):
        raise InvalidReference("This is not the name of a model on the Hub, but of one that Ollama or Docker holds: give its id, org/name.")
    if _ADDRESS.match(text):
        raise InvalidReference(f"This is not an address of a {kind} on the Hub: give its id, org/name.")
    return text[:-1] if re.fullmatch(rf"{_ID}/", text) else text


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
    """Return ``text`` as `plain_or_same` writes it, for callers that may read paths: with ``@main`` where its address is also a path."""
    name = plain_or_same(text)
    return f"{name}@main" if is_address(text) and "@" not in name and os.path.exists(name) else name  # noqa: PTH110 - never raises


def plain_or_same(text: str, kind: Kind = "model") -> str:
    """Return ``text`` as `plain` writes it, or unchanged if it is refused: whoever opens it gives the reason."""
    try:
        return plain(text, kind)
    except InvalidReference:
        return text


def split(text: str) -> list[str]:
    """Return the references in ``text``, separated by commas, semicolons, brackets and white space, as `plain_or_same` writes them."""
    return [plain_or_same(word) for word in re.split(r"[\s,;()\[\]]+", _without_code(text)) if word.strip(_QUOTES + _BULLETS)]


def _bare(text: str) -> str:
    """Return ``text`` without quotes, separators and the brackets of an address around it."""
    text = text.strip(_QUOTES + string.whitespace + ",;")
    return text[1:-1] if text[:1] == "<" and text[-1:] == ">" and "://" in text else text


def _endpoint() -> str:
    """Return the alternative of the pattern of the Hub's addresses for the host of HF_ENDPOINT, "" if it is not set."""
    endpoint = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/").rpartition("://")[2]
    return f"|{re.escape(endpoint)}" if endpoint else ""


def _without_code(text: str) -> str:
    """Replace calls and commands that name a repository by the address of that repository; of a program, return these addresses alone."""
    named: list[str] = []

    def address(match: re.Match[str]) -> str:
        named.append(_named_in_code(**match.groupdict()))
        return f" {named[-1]} "

    for pattern in (_LINK, _CALL, _DOWNLOAD, _CLONE, _SERVE):
        text = pattern.sub(address, text)
    return " ".join(dict.fromkeys(named)) if named and _PROGRAM.search(text) else _KEY.sub(" ", text).strip()


def _named_in_code(
    name: str, rest: str = "", function: str = "", branch: str | None = None, quote: str = "", ollama: str | None = None
) -> str:
    if ollama and not name.startswith(("hf.co/", "huggingface.co/")):
        return f"ollama://{name}"
    revision, kind = (re.search(_OPTION.format(name=option), rest) for option in ("revision", "repo[-_]type"))
    branch = branch or (revision[1] if revision is not None and revision[1] != "None" else None)
    at = f"@{branch.replace('/', '%2F')}" if branch else ""
    if "://" in name or name.startswith("git@"):
        return name.removesuffix(".git") + at
    name = _TAG.sub(r"\1", name)
    folder = f"{kind[1]}s/" if kind is not None else "datasets/" if function == "load_dataset" else ""
    return name + at.replace("%2F", "/") if not folder else f"hf://{folder}{name}{at}"


def _of_address(address: str, kind: Kind, views: set[str]) -> str:
    """Return the reference in the part of an address after its host. views: words before a revision; none in hf:// addresses."""
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
    revision = unquote(_REVISION.match(after)[0])  # type: ignore[index]  # it matches ""
    name = _TAG.sub(r"\1", name.removesuffix(".git"))
    reference = name if revision == "main" or not (at or revision) else f"{name}@{revision}"
    if not re.fullmatch(rf"{_ID}|[\w.-]+", name, re.ASCII) or _ADDRESS.match(reference):  # nothing that would be read in another way
        raise InvalidReference(f"This is not the address of a {kind}: give its id, org/name.")
    return reference
