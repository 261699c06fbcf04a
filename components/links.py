"""The state of the page as text: a permalink's query, the same analysis on the command line, and the way back.

A query string is as untrusted as a form: it is turned into the fields of the form, and only the request validates them.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from urllib.parse import urlencode

from pydantic import ValidationError

from analyzers import limits
from analyzers.base import request_error
from analyzers.dtype_detection import DtypeReport, DtypeRequest
from analyzers.errors import InvalidRequest
from components.outcomes import Outcome

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SHOWN = 60
# What the box for models may hold: as many references as one run takes, with what separates them.
_LONGEST_MODELS = limits.MODELS * (limits.REFERENCE_LENGTH + 2)


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
        """The validated request for one model. Raises InvalidRequest with the sentence to show."""
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
            # "budget: the budget must be ..." names the field twice
            said = re.sub(r"^(\w+): the \1 ", lambda found: f"The {found[1]} ", str(request_error(error)))
            raise InvalidRequest(said) from None

    def requests(self) -> list[DtypeRequest]:
        """A request for each model named in ``model``, all with the same options. Raises InvalidRequest."""
        return [replace(self, model=model).request() for model in models(self.model) or [""]]


def models(text: str) -> list[str]:
    """The model ids in ``text``, separated by commas, semicolons or white space, each once. Raises InvalidRequest for too many."""
    found = list(dict.fromkeys(re.findall(r"[^\s,;]+", text[:_LONGEST_MODELS])))
    if len(found) > limits.MODELS:
        raise InvalidRequest(f"One run takes at most {limits.MODELS} models (MANTISSA_MODELS), not {len(found):,}: use the command line.")
    if len(text) > _LONGEST_MODELS:
        raise InvalidRequest(f"{len(text):,} characters are more than {limits.MODELS} model ids have: paste the ids only.")
    return found


def form(query: Sequence[tuple[str, str]]) -> Form:
    """The form that the keys and values of a query describe: each ``model`` adds one, of others the last counts.

    Unknown keys are ignored, every value is cut to what a field may hold.
    """
    known = asdict(Form())
    asked = [text for key, text in query if key == "model"]
    fields = {key: text[: limits.FILTER_LENGTH + 1] for key, text in query if key in known and key != "model"}
    if asked:
        fields["model"] = ", ".join(asked)[: _LONGEST_MODELS + 1]
    revision = dict(query).get("revision", "")[: limits.REFERENCE_LENGTH]
    if revision and len(asked) == 1 and asked[0]:
        fields["model"] = f"{fields['model']}@{revision}"
    return Form(**fields)


def permalink(report: DtypeReport) -> str:
    """The query that shows this report again, pinned to its commit: ``?model=...&revision=...&mode=...``."""
    checkpoint = report.checkpoint
    fields = [("model", checkpoint.ref)]
    if not checkpoint.ref.startswith("sample:"):
        fields.append(("revision", checkpoint.commit))
    return "?" + urlencode(fields + _options(report.request))


def permalink_of_several(outcomes: Sequence[Outcome], request: DtypeRequest) -> str:
    """The query that shows these models again, ``?model=...&model=...``, pinned to their commits where these are known."""
    return "?" + urlencode([("model", _pinned(outcome)) for outcome in outcomes] + _options(request))


def command(report: DtypeReport) -> str:
    """The line that makes the same analysis in a shell."""
    return _command([_pinned(Outcome(report.checkpoint.ref, report))], report.request)


def command_of_several(outcomes: Sequence[Outcome], request: DtypeRequest) -> str:
    """The line that makes the same table in a shell."""
    return _command([_pinned(outcome) for outcome in outcomes], request)


def _pinned(outcome: Outcome) -> str:
    """The model with its commit, where it has one; as asked for where it could not be read."""
    if outcome.report is None:
        return outcome.model
    checkpoint = outcome.report.checkpoint
    return checkpoint.ref if checkpoint.ref.startswith("sample:") else f"{checkpoint.ref}@{checkpoint.commit}"


def _options(request: DtypeRequest) -> list[tuple[str, str]]:
    fields: list[tuple[str, str]] = [("mode", request.mode)]
    if request.budget != limits.DEFAULT_BUDGET_BYTES:
        fields.append(("budget", str(request.budget)))
    fields += [(key, text) for key in ("include", "exclude", "subfolder") if (text := getattr(request, key))]
    if request.seed:
        fields.append(("seed", str(request.seed)))
    return fields


def _command(names: Sequence[str], request: DtypeRequest) -> str:
    words = ["python", "-m", "analyzers", "dtype", *names]
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
