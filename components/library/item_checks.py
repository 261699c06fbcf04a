"""Checks untrusted texts, addresses and times before the library stores them."""

import hashlib
import json
import re
import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from analyzers.checkpoints.reference import HUB_TOKEN, parse_reference, quoted, summands
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.terminal import printable

# Codes that `printable` writes for invisible characters, and letters and symbols that look blank.
_CODES = re.compile(r"<U\+[0-9A-F]{4,6}>")
_BLANK = "\u115f\u1160\u2800"
_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
# The least letters and digits of a quoted sentence, and of where it stands.
_SENTENCE, _SOURCE = 12, 4
_QUOTED = re.compile(r"[\"“”„«»「」]([^\"“”„«»「」]+)[\"“”„«»「」]")
_PUBLIC_HOST = re.compile(r"(?:[a-z0-9_-]+\.)+[a-z][a-z0-9-]+")
_SCHEMES = ("http:", "https:", "javascript:", "data:", "file:", "ftp:")
EVIDENCE = (
    "the https address of the page that says it (model card, paper, repository, forum), or a quoted sentence with its source, such as "
    '"All models were trained in bfloat16." (paper, section 3)'
)
_FORM = "%Y-%m-%dT%H:%M:%S.%fZ"
_TOMORROW = timedelta(days=1)


def address(kind: str, content: dict[str, Any]) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of an item's content."""
    text = json.dumps([kind, content], sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def now() -> str:
    """Return the current time, UTC, in the library's format, which sorts as text."""
    return timestamp(datetime.now(UTC))


def timestamp(time: datetime) -> str:
    """Format a time in the library's format."""
    return time.strftime(_FORM)


def after(created: str, earlier: str) -> str:
    """Return ``created``, or a time just after ``earlier`` if a clock went back: no label may be older than the one it replaces."""
    if created > earlier:
        return created
    return timestamp(datetime.strptime(earlier, _FORM).replace(tzinfo=UTC) + timedelta(microseconds=1))


def hub_id(model: str) -> str:
    """Check that ``model`` is an id on the Hub and return it. Raises InvalidRequest for samples, paths, revisions and invalid ids."""
    reference = parse_reference(model, local=False)
    if reference.kind != "hub" or reference.revision is not None or model != reference.name:
        raise InvalidRequest(f"{quoted(model)} is not a repository of the Hub: give org/name, without a revision.")
    return model


def read_model(name: str) -> str:
    """Check the name of a model in a result, without revisions: on the Hub, a sample, or a base with adapters. Raises InvalidRequest."""
    for part in summands(name, local=False):
        if not part.text.startswith("sample:"):
            hub_id(part.text)
    return name


def model_id(text: str) -> str:
    """Return the name of a model in the library: org/name, or sample:NAME for a built-in sample.

    Raises InvalidRequest for anything else.
    """
    reference = parse_reference(text, local=False)
    if reference.revision is not None:
        raise InvalidRequest("A label describes a model as a whole: leave out the revision, '@' and what follows.")
    return reference.full_name


def checked_link(link: str) -> str:
    """Check an address that may be shown as a link, and return it. It is never fetched. Raises InvalidRequest."""
    problem = ""
    if len(link) > limits.EVIDENCE_LINK_LENGTH:
        problem = f"has {len(link):,} characters, more than {limits.EVIDENCE_LINK_LENGTH:,}"
    elif not link.isascii() or not re.fullmatch(r"https?://[^\s\x00-\x20\"'<>\\^`{|}\x7f]+", link):
        problem = "is not a valid address: write it as http(s)://... in ASCII, other characters as %XX"
    else:
        try:
            parts = urlsplit(link)
            host, user, _ = parts.hostname, parts.username or parts.password, parts.port
        except ValueError:
            host, user = None, None
        if not host or user is not None:
            problem = "has no host, or has a user name: give the address of a page that anybody can open"
    if HUB_TOKEN.search(link):
        raise InvalidRequest("The evidence contains an access token, which is a secret: revoke it, and give evidence without it.")
    if problem:
        raise InvalidRequest(f"The link {quoted(link)} {problem}.")
    return link


def visible(text: str) -> str:
    """Check that ``text`` is one line of visible characters without an access token, and return it. Raises InvalidRequest."""
    if not text.isprintable():
        raise InvalidRequest("A text contains control characters, or characters that reorder a line: remove them.")
    if HUB_TOKEN.search(text):
        raise InvalidRequest("The text contains an access token, which is a secret: revoke it, and leave it out.")
    return text


def readable(text: str) -> str:
    """Check ``text`` like `visible`, and that it is not blank. Raises InvalidRequest."""
    seen = unicodedata.normalize("NFKC", _CODES.sub("", visible(text)))
    if not any(unicodedata.category(c)[0] in "LNPS" and c not in _BLANK for c in seen):
        raise InvalidRequest("The evidence is blank: give a link, or a quote with its source.")
    return text


def one_line(text: str, longest: int, name: str) -> str:
    """Return ``text`` as the library stores it: white space as single spaces, invisible characters as their code (``<U+202E>``).

    Raises InvalidRequest for more than ``longest`` characters, before or after.
    """
    cleaned = printable(" ".join(text.split())) if len(text) <= longest else text
    if len(cleaned) > longest:
        raise InvalidRequest(f"The {name} has {len(cleaned):,} characters; the limit is {longest:,}.")
    return cleaned


def checked_time(created: str) -> str:
    """Check that a time is in the library's format and not in the future, and return it. Raises ValueError."""
    if not _CREATED.fullmatch(created):
        raise ValueError("a time must look like 2026-11-21T23:58:43.123456Z")
    if datetime.fromisoformat(created) > datetime.now(UTC) + _TOMORROW:
        raise ValueError("a time is in the future")
    return created


def page_link(link: str) -> str:
    """Check that a link leads to a page: https, the public name of a host, and a path; return it. Raises InvalidRequest."""
    parts = urlsplit(checked_link(link))
    if parts.scheme != "https":
        raise InvalidRequest(f"The link {quoted(link)} begins with http: use https.")
    host, path = parts.hostname or "", unquote(parts.path)
    if not _PUBLIC_HOST.fullmatch(host) or not _letters(path):
        raise InvalidRequest(f"The link {quoted(link)} does not lead to a page with evidence: give {EVIDENCE}.")
    return link


def evidence_of(evidence: str, quote: str) -> tuple[str, str]:
    """Check the evidence of a new label and return its link and its text, "" for a missing one.

    A link (see `page_link`), with or without words of the page in ``quote``; or a quoted sentence and where it stands: as ``quote`` and
    ``evidence``, or as one text with the sentence in quotation marks. Raises InvalidRequest.
    """
    given = evidence.strip() if len(evidence) <= 2 * limits.EVIDENCE_QUOTE_LENGTH else evidence
    said = one_line(quote, limits.EVIDENCE_QUOTE_LENGTH, "quote")
    if given.lower().startswith(_SCHEMES):
        scheme, rest = given.split(":", 1)
        return page_link(f"{scheme.lower()}:{rest}"), said
    source = one_line(given, limits.EVIDENCE_QUOTE_LENGTH, "evidence")
    text = f"“{said}” ({source})" if source and said else source or said
    if not (source and said):
        said = max(_QUOTED.findall(text), key=_letters, default=said)
        source = text.replace(said, "")
    if _letters(said) < _SENTENCE:
        raise InvalidRequest(f"A label needs evidence: give {EVIDENCE}.")
    if _letters(source) < _SOURCE:
        raise InvalidRequest(
            f"The source of the quoted sentence is missing: add it, with {_SOURCE} letters or digits at least, such as (paper, section 3)."
        )
    return "", one_line(text, limits.EVIDENCE_QUOTE_LENGTH, "evidence")


def _letters(text: str) -> int:
    """Count the visible letters and digits of ``text``."""
    return sum(c.isalnum() and c not in _BLANK for c in unicodedata.normalize("NFKC", _CODES.sub("", text)))
