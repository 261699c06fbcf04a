"""The state of the page as text: a permalink's query, the same analysis on the command line, and the way back.

A query string is as untrusted as a form: it is turned into the fields of the form, and only the request validates them.
"""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from pydantic import ValidationError

from analyzers import limits
from analyzers.base import request_error
from analyzers.dtype_detection import DtypeReport, DtypeRequest
from analyzers.errors import InvalidRequest

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of the page's form, as typed. Empty means: the default."""

    model: str = ""
    mode: str = "quick"
    budget: str = ""
    include: str = ""
    exclude: str = ""
    subfolder: str = ""
    seed: str = "0"

    def request(self) -> DtypeRequest:
        """The validated request. Raises InvalidRequest with the sentence to show."""
        if not self.model.strip():
            raise InvalidRequest("Type or paste a model id such as google-t5/t5-small, or pick one of the samples.")
        try:
            return DtypeRequest(
                model=self.model.strip(),
                mode=self.mode,  # type: ignore[arg-type]  # any text: the request says which are modes
                budget=_budget(self.budget) if self.mode != "exact" else limits.DEFAULT_BUDGET_BYTES,
                include=self.include or None,
                exclude=self.exclude or None,
                subfolder=self.subfolder.strip() or None,
                seed=_whole(self.seed),
            )
        except ValidationError as error:
            raise request_error(error) from None


def form(query: Mapping[str, str]) -> Form:
    """The form that a query string describes; unknown keys are ignored, every value is cut to what a field may hold."""
    known = asdict(Form())
    fields = {key: text[: limits.FILTER_LENGTH + 1] for key, text in query.items() if key in known}
    revision = query.get("revision", "")[: limits.REFERENCE_LENGTH]
    if revision and fields.get("model"):
        fields["model"] = f"{fields['model']}@{revision}"
    return Form(**fields)


def permalink(report: DtypeReport) -> str:
    """The query that shows this report again, pinned to its commit: ``?model=...&revision=...&mode=...``."""
    request, checkpoint = report.request, report.checkpoint
    fields = {"model": checkpoint.ref}
    if not checkpoint.ref.startswith("sample:"):
        fields["revision"] = checkpoint.commit
    fields["mode"] = request.mode
    if request.budget != limits.DEFAULT_BUDGET_BYTES:
        fields["budget"] = str(request.budget)
    fields |= {key: text for key in ("include", "exclude", "subfolder") if (text := getattr(request, key))}
    if request.seed:
        fields["seed"] = str(request.seed)
    return "?" + urlencode(fields)


def command(report: DtypeReport) -> str:
    """The line that makes the same analysis in a shell."""
    request, checkpoint = report.request, report.checkpoint
    pinned = checkpoint.ref if checkpoint.ref.startswith("sample:") else f"{checkpoint.ref}@{checkpoint.commit}"
    words = ["python", "-m", "analyzers", "dtype", pinned]
    if request.mode == "exact":
        words.append("--exact")
    elif request.budget != limits.DEFAULT_BUDGET_BYTES:
        words += ["--budget", str(request.budget)]
    # "--include=..." also carries a filter that begins with a dash
    words += [f"--{key}={text}" for key in ("include", "exclude", "subfolder") if (text := getattr(request, key))]
    if request.seed:
        words += ["--seed", str(request.seed)]
    return shlex.join(words)


def _budget(text: str) -> int:
    """Bytes from text such as ``64MB``, ``1.5 GB`` or ``2000000``; the default for nothing. Raises InvalidRequest."""
    plain = text.strip().lower().replace(",", "").replace("_", "")
    if not plain:
        return limits.DEFAULT_BUDGET_BYTES
    number = plain.rstrip("bgikm ").strip()
    unit = plain[len(number) :].strip()
    try:
        value = float(number) if len(number) <= 20 and not number.isalpha() else None
        return int(value * _UNITS[unit]) if value is not None else _not_a_budget(text)
    except (ValueError, KeyError, OverflowError):
        return _not_a_budget(text)


def _not_a_budget(text: str) -> int:
    raise InvalidRequest(f"{text[:_SHOWN]!r} is not an amount of bytes: write the budget as 64MB, 1.5GB or a plain number.")


def _whole(text: str) -> int:
    """A seed. Raises InvalidRequest."""
    plain = text.strip() or "0"
    if not (plain.removeprefix("-").isascii() and plain.removeprefix("-").isdigit() and len(plain) <= 20):
        raise InvalidRequest(f"{text[:_SHOWN]!r} is not a seed: write a whole number from 0 up.")
    return int(plain)
