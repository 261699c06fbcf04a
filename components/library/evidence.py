"""Checks untrusted names, texts and addresses before the library stores them, and tells a link from a quoted sentence."""

import re
import unicodedata
from urllib.parse import unquote

from analyzers.checkpoints.reference import HUB_TOKEN, parse_reference, quoted, summands
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.terminal import printable

EVIDENCE = (
    "the https address of the page that says it (model card, paper, repository, forum), or a quoted sentence with its source, such as "
    '"All models were trained in bfloat16." (paper, section 3)'
)
_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]*(?:[.-][A-Za-z0-9_]+)*/[A-Za-z0-9][A-Za-z0-9_]*(?:[.-][A-Za-z0-9_]+)*", re.ASCII)
# Codes that `printable` writes for invisible characters, and letters and symbols that look blank.
_CODES = re.compile(r"<U\+[0-9A-F]{4,6}>")
_BLANK = "\u115f\u1160\u2800"
# The least letters and digits of a quoted sentence, and of where it stands.
_SENTENCE, _SOURCE = 12, 4
_QUOTED = re.compile(r"[\"“”„«»「」]([^\"“”„«»「」]+)[\"“”„«»「」]")
# https, the public name of a host, and a path.
_LINK = re.compile(r"https://(?:[a-z0-9_-]+\.)+[a-z][a-z0-9-]+(?::\d{1,5})?/([^\s\x00-\x20\"'<>\\^`{|}\x7f]*)", re.ASCII | re.IGNORECASE)
_SCHEMES = ("http:", "https:", "javascript:", "data:", "file:", "ftp:")


def hub_id(model: str) -> str:
    """Check that ``model`` is an id on the Hub and return it. Raises InvalidRequest for samples, paths, revisions and invalid ids."""
    reference = parse_reference(model, local=False)
    if reference.kind != "hub" or reference.revision is not None or model != reference.name:
        raise InvalidRequest(f"{quoted(model)} is not a repository of the Hub: give org/name, without a revision.")
    return model


def read_model(name: str) -> str:
    """Check the name of a model in a result, without revisions: on the Hub, a sample, or a base with adapters. Raises InvalidRequest."""
    if len(name) > 90 or not _PLAIN_ID.fullmatch(name):  # parsing takes 20 times as long
        for part in summands(name, local=False):
            if not part.text.startswith("sample:"):
                hub_id(part.text)
    return name


def model_id(text: str) -> str:
    """Return the name of a model in the library: org/name, or sample:NAME. Raises InvalidRequest for anything else."""
    reference = parse_reference(text, local=False)
    if reference.revision is not None:
        raise InvalidRequest("A label describes a model as a whole: leave out the revision, '@' and what follows.")
    return reference.full_name


def visible(text: str) -> str:
    """Check that ``text`` is one line of visible characters without an access token, and return it. Raises InvalidRequest."""
    if not text.isprintable():
        raise InvalidRequest("A text contains control characters, or characters that reorder a line: remove them.")
    if "hf_" in text and HUB_TOKEN.search(text):
        raise InvalidRequest("The text contains an access token, which is a secret: revoke it, and leave it out.")
    return text


def quote(text: str) -> str:
    """Check quoted evidence like `visible`, and that it is not blank; "" for none. Raises InvalidRequest."""
    seen = unicodedata.normalize("NFKC", _CODES.sub("", visible(text)))
    if text and not any(unicodedata.category(c)[0] in "LNPS" and c not in _BLANK for c in seen):
        raise InvalidRequest("The evidence is blank: give a link, or a quote with its source.")
    return text


def page_link(link: str) -> str:
    """Check that a link leads to a page: https, the public name of a host, and a path; return it, "" for none. It is never opened.

    Raises InvalidRequest.
    """
    if not link:
        return link
    found = _LINK.fullmatch(visible(link)) if len(link) <= limits.EVIDENCE_LINK_LENGTH else None
    if found is None or not _letters(unquote(found[1].partition("?")[0])):
        raise InvalidRequest(f"The link {quoted(link)} does not lead to a page with evidence: give {EVIDENCE}.")
    return link


def evidence_of(evidence: str, words: str) -> tuple[str, str]:
    """Check the evidence of a new label and return its link and its text, "" for a missing one.

    A link (see `page_link`), with or without ``words`` of the page; or a quoted sentence and where it stands: as ``words`` and
    ``evidence``, or as one text with the sentence in quotation marks. Raises InvalidRequest.
    """
    given = evidence.strip() if len(evidence) <= 2 * limits.EVIDENCE_QUOTE_LENGTH else evidence
    sentence = _one_line(words)
    if given.lower().startswith(_SCHEMES):
        scheme, rest = given.split(":", 1)
        return page_link(f"{scheme.lower()}:{rest}"), quote(sentence)
    source = _one_line(given)
    text = f"“{sentence}” ({source})" if source and sentence else source or sentence
    if not (source and sentence):
        sentence = max(_QUOTED.findall(text), key=_letters, default=sentence)
        source = text.replace(sentence, "")
    if _letters(sentence) < _SENTENCE:
        raise InvalidRequest(f"A label needs evidence: give {EVIDENCE}.")
    if _letters(source) < _SOURCE:
        least = f"with {_SOURCE} letters or digits at least, such as (paper, section 3)"
        raise InvalidRequest(f"The source of the quoted sentence is missing: add it, {least}.")
    return "", quote(_one_line(text))


def _one_line(text: str) -> str:
    """Return ``text`` with white space as single spaces, and invisible characters as their code (``<U+202E>``). Raises InvalidRequest."""
    longest = limits.EVIDENCE_QUOTE_LENGTH
    cleaned = printable(" ".join(text.split())) if len(text) <= longest else text
    if len(cleaned) > longest:
        raise InvalidRequest(f"The evidence has {len(cleaned):,} characters; the limit is {longest:,}.")
    return cleaned


def _letters(text: str) -> int:
    """Count the visible letters and digits of ``text``."""
    return sum(c.isalnum() and c not in _BLANK for c in unicodedata.normalize("NFKC", _CODES.sub("", text)))
