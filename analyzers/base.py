"""Requests, progress and reports: the types that all analyzers share.

An analyzer exports ``analyze(request, access)``, a generator of `Progress` whose last item is the `Report`. Closing it cancels the work and
frees its memory.
"""

import hashlib
import html
import json
import math
import platform
import re
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, field_validator, model_validator

from analyzers import limits
from analyzers.coverage import Coverage
from analyzers.errors import InvalidRequest, LimitExceeded, MissingExtra
from analyzers.extras import extras_explained
from analyzers.formatting import abbreviated, parse_bytes, size
from analyzers.options import Option
from analyzers.pasted_text import plain_or_same
from analyzers.records import Record
from analyzers.terminal import joined, printable

if TYPE_CHECKING:
    import pandas
    from plotly.graph_objects import Figure

_MAX_BUDGET_BYTES = 4_000_000_000  # The largest sample in quick mode; exact mode reads everything.


class Progress(Record):
    """Progress of a run: ``done`` of ``total``, counted in ``unit`` ("bytes", "tensors", "samples")."""

    done: int
    total: int
    unit: str
    note: str = ""


class Request(Record):
    """The input of an analyzer. It validates everything, for page, command line, API and MCP alike."""


REFERENCE = (
    "org/name, org/name@revision, its address on the Hub, sample:NAME (sample:tiny-bf16), or BASE+ADAPTER of these; "
    "on the command line also ./folder"
)
# For fields that name a checkpoint, several, or a dataset: what is pasted becomes the id that it means.
PASTED = AfterValidator(lambda value: tuple(map(plain_or_same, value)) if isinstance(value, tuple) else value and plain_or_same(value))
PASTED_DATASET = AfterValidator(lambda value: plain_or_same(value, "dataset"))
Reference = Annotated[str, PASTED, Field(description=f"A checkpoint: {REFERENCE} or /file.")]


class WeightsRequest(Request):
    """Options of the analyzers that read weights."""

    mode: Annotated[Literal["quick", "exact"], Option("Mode", info="", names=("Quick: a sample", "Exact: every byte"))] = Field(
        default="quick", description="quick: read a seeded sample of each checkpoint; exact: read everything."
    )
    budget: Annotated[int, Option("Budget of quick mode", info="", example="64MB", metavar="SIZE", more="also written 64MB")] = Field(
        default=limits.DEFAULT_BUDGET_BYTES, strict=True, description="Bytes of weights to sample from each checkpoint, in quick mode."
    )
    include: Annotated[str | None, Option("Only tensors whose name matches (regular expression)", info="", example="mlp", metavar="RE")] = (
        Field(default=None, description="Only tensors whose name matches this regular expression (default: all).")
    )
    exclude: Annotated[str | None, Option("Exclude tensors whose name matches", info="", example="embed", metavar="RE")] = Field(
        default=None, description="No tensors whose name matches this regular expression."
    )
    subfolder: Annotated[str | None, Option("Folder inside the repository", info="", example="unet")] = Field(
        default=None, description="Only the weights in this folder of the repository."
    )
    seed: Annotated[int, Option("Seed of the sample", info="")] = Field(
        default=0, ge=0, lt=2**63, strict=True, description="Seed of the sample."
    )
    device: Annotated[Literal["auto", "cpu", "cuda"], Option(site=False)] = Field(
        default="auto", description="Where to count; auto: the CPU."
    )

    @field_validator("budget", mode="before")
    @classmethod
    def _budget_in_bytes(cls, budget: Any) -> Any:
        return parse_bytes(budget) if isinstance(budget, str) else budget

    @field_validator("budget")
    @classmethod
    def _budget_in_range(cls, budget: int) -> int:
        if not 1 <= budget <= _MAX_BUDGET_BYTES:
            raise ValueError(f"the budget must be from 1 byte to {_MAX_BUDGET_BYTES:,} bytes, not {budget:,}")
        return budget

    @field_validator("include", "exclude", "subfolder")
    @classmethod
    def _short(cls, text: str | None) -> str | None:
        if text is not None and len(text) > limits.FILTER_LENGTH:
            raise ValueError(f"a filter may have at most {limits.FILTER_LENGTH:,} characters, not {len(text):,}")
        return text or None

    @model_validator(mode="after")
    def _exact_has_no_budget(self) -> Self:
        if self.mode == "exact" and self.budget != limits.DEFAULT_BUDGET_BYTES:
            raise ValueError("exact mode reads everything: give either --exact or a budget")
        return self

    def resolved(self, device: str) -> dict[str, Any]:
        """Return the options that enter a report's id: the mode, and those not at their default. device: where the run counts."""
        options = self.model_dump(exclude={"model", "base", "tuned", "device"}, exclude_defaults=True)
        return options | {"mode": self.mode} | ({"device": device} if device != "cpu" else {})


def finite(x: float) -> float | None:
    """Return ``x``, or None if it is not finite: JSON has no NaN or infinity."""
    return x if math.isfinite(x) else None


def check_size(nbytes: int, largest: int | None, instead: str = "quick mode, or the command line") -> None:
    """Raise LimitExceeded for a run that would read more than ``largest`` bytes. instead: the alternative that the message suggests."""
    if largest is not None and nbytes > largest:
        raise LimitExceeded(f"This would read {size(nbytes)}; the limit here is {size(largest)}. Use {instead}.")


class CheckpointFacts(Record):
    """Facts about a whole checkpoint. ``parameters`` excludes buffers; ``bytes`` and ``files`` count its weights."""

    ref: str
    commit: str
    parameters: int
    bytes: int
    files: int
    tensors: int
    public: bool
    quantization: str | None

    def short_commit(self, digits: int = 12) -> str:
        """Return the commit, abbreviated."""
        return abbreviated(self.commit, digits)


class Environment(Record):
    """The software and hardware of a run; not part of a report's id or of its equality."""

    python: str
    machine: str
    device: str
    libraries: dict[str, str]


class Timing(Record):
    """Duration of a run; not part of a report's id or of its equality.

    seconds: total; reading_seconds: time for reading and processing weights; bytes_per_second: the rate over reading_seconds.
    """

    seconds: float
    reading_seconds: float
    bytes_per_second: float | None

    @classmethod
    def since(cls, start: float, nbytes: int, reading: float) -> Self:
        """Return the timing of a run that began at ``start`` (`perf_counter`) and read ``nbytes`` in ``reading`` seconds."""
        return cls(seconds=perf_counter() - start, reading_seconds=reading, bytes_per_second=nbytes / reading if reading > 0 else None)


class NextStep(NamedTuple):
    """Advice on a result. advice: a sentence that the result supports; analyzer: answers the next question about the same ``model``."""

    advice: str
    analyzer: str
    model: str


class Report(Record):
    """The result of an analyzer. ``id`` is the content address of the resolved request (see `content_id`)."""

    analyzer: str
    schema_version: int
    analysis_version: int
    id: str
    timing: Timing
    environment: Environment

    def subject(self) -> dict[str, str]:
        """Return the checkpoints described, for the first columns of tables of several reports; by default the field ``checkpoint``."""
        return {"model": vars(self)["checkpoint"].ref}

    def parts(self) -> "Sequence[Report]":
        """Return the reports that this one is composed of, each complete in itself; none by default."""
        return ()

    def tables(self) -> "dict[str, pandas.DataFrame]":
        """Return the report's tables by name, as the analyzer's `columns.TABLES` declares them. ``summary`` has one row."""
        return {table.key: table.frame(self) for table in self._module("columns").TABLES}

    def full_tables(self) -> "dict[str, pandas.DataFrame]":
        """Return `tables` with a row for every tensor, if the analyzer made this object; a report read from JSON may have fewer rows."""
        return self.tables()

    @property
    def outdated(self) -> bool:
        """True if an older version of the analysis made this report, so that the present version may infer something else."""
        from analyzers import ANALYZERS

        return self.analysis_version < ANALYZERS[self.analyzer].analysis_version()

    def accounts(self) -> Sequence[Coverage]:
        """Return the coverage of each checkpoint that the answer depends on; empty for reports made before coverage was recorded."""
        accounts: Sequence[Coverage] = vars(self).get("coverage", ())
        return accounts

    @property
    def whole(self) -> bool:
        """True if a sentence may speak of whole checkpoints, and for older reports, which record no coverage."""
        return all(coverage.whole for coverage in self.accounts())

    @property
    def covered_share(self) -> float | None:
        """The smallest share of weights covered, among the report's checkpoints; None if no share is known."""
        shares = [coverage.share for coverage in self.accounts() if coverage.share is not None]
        return min(shares, default=None)

    def reach(self) -> str:
        """Write how much the answer covers: the share, and the largest part left out; "" if it covers everything. Headlines end with it."""
        partial = self._partial()
        return partial[0].suffix(partial[0].ref if len(self.accounts()) > 1 else "") if partial else ""

    def short_reach(self) -> str:
        """Write `reach` in two or three words, for a badge or a cell."""
        partial = self._partial()
        return partial[0].short() if partial else ""

    def _partial(self) -> list[Coverage]:
        """Return the coverages that are not whole, the smallest share first."""
        partial = [coverage for coverage in self.accounts() if not coverage.whole]
        return sorted(partial, key=lambda coverage: 1.0 if coverage.share is None else coverage.share)

    def headline(self) -> str:
        """Write the answer in a sentence or two, ending with `reach`. Page, link preview, API and command line all show it."""
        sentence: str = self._module("sentences").headline(self)
        return sentence

    def next_step(self) -> NextStep:
        """Return the advice on what to do about the result."""
        step: NextStep = self._module("sentences").next_step(self)
        return step

    def more_findings(self) -> list[str]:
        """Return further findings, one sentence each."""
        sentences = re.split(r"(?<=\.) ", getattr(self, "statement", "")) if self.whole else []
        return [sentence for sentence in sentences if sentence not in self.headline()]

    def answer_lines(self) -> list[str]:
        """Return `headline`, `next_step` and `more_findings` as lines for a terminal."""
        findings = self.more_findings()
        return [self.headline(), f"What now: {self.next_step().advice}", *(["", *findings] if findings else [])]

    @property
    def summary(self) -> str:
        """The subject and the answer in one line."""
        return printable(f"{' -> '.join(self.subject().values())}: {self.headline()}")

    def __repr__(self) -> str:
        """Return the `summary`."""
        return self.summary

    __str__ = __repr__

    def text(self) -> str:
        """Return the whole report as text, as the command line prints it."""
        return joined(self.lines())

    def lines(self) -> list[str]:
        """Return the lines of `text` with names as stored: callers pass each line to `terminal.printable` before they print it."""
        lines: list[str] = self._module("text").one(self)
        return lines

    def plots(self) -> "dict[str, Figure]":
        """Draw every figure of the result; keys are the figures' names on the page. Raises MissingExtra without the extra ``plots``."""
        with extras_explained():
            return {plot.label: plot.draw(self) for plot in self._layout().plots(self)}

    def plot(self, name: str) -> "Figure":
        """Draw the figure with this name, or with a name that contains it, ignoring case.

        Raises InvalidRequest, which lists the names; MissingExtra without the extra ``plots``.
        """
        with extras_explained():
            known = {plot.label: plot for plot in self._layout().plots(self)}
            matching = [plot for label, plot in known.items() if label.lower() == name.lower()]
            matching = matching or [plot for label, plot in known.items() if name.lower() in label.lower()]
            if len(matching) != 1:
                choices = f": choose one of {', '.join(map(json.dumps, known))}" if known else ", and no others"
                raise InvalidRequest(f"This report has no figure {json.dumps(name[:60])}{choices}.")
            return matching[0].draw(self)

    def to_html(self) -> str:
        """Return one self-contained page with tables and figures, 5 MB with Plotly's script. Raises MissingExtra without ``plots``."""
        with extras_explained():
            page: str = self._layout().document([self]).alone()
        return page

    def _repr_html_(self) -> str:
        """Return the result in a frame, for notebooks, with the names of the figures that `plot` draws; `text` if ``plots`` is missing."""
        try:
            with extras_explained():
                page: str = self._layout().document([self], figures=False).alone(figures=False)
        except MissingExtra:
            return f"<pre>{html.escape(self.text())}</pre>"
        style = "width: 100%; height: 720px; border: 0"
        return f'<iframe sandbox style="{style}" srcdoc="{html.escape(page)}"></iframe>'

    def _module(self, name: str) -> Any:
        """Return a module of the analyzer, through the registry: reports import neither their sentences nor their tables."""
        from analyzers import ANALYZERS

        return ANALYZERS[self.analyzer].module(name)

    def _layout(self) -> Any:
        """Return the layout of this analyzer's results, which is in `components`."""
        from analyzers import ANALYZERS

        with extras_explained():
            return ANALYZERS[self.analyzer].component("result").RESULT


class WeightsReport(Report):
    """A report on weights; with very many tensors, its field ``tensors`` has rows for groups of them."""

    _full_rows: Callable[[], Sequence[Any]] | None = PrivateAttr(default=None)

    def keep_full_rows(self, rows: Callable[[], Sequence[Any]]) -> None:
        """Store the function that makes a row for every tensor if ``tensors`` is aggregated. Not part of the JSON."""
        self._full_rows = rows

    def full_rows(self) -> Sequence[Any]:
        """Return a row for every tensor if the analyzer made this object; else ``tensors``."""
        rows: Sequence[Any] = self._full_rows() if self._full_rows else vars(self)["tensors"]
        return rows

    def full_tables(self) -> "dict[str, pandas.DataFrame]":
        """Return `tables` with a row for every tensor (`full_rows`)."""
        return self.model_copy(update={"tensors": tuple(self.full_rows())}).tables()


def content_id(analyzer: str, analysis_version: int, resolved: dict[str, Any]) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of analyzer, analysis version and *resolved* request.

    ``resolved`` has the canonical repository and commit in place of the user's reference, and omits every option at its default, so that a
    new option changes no old id.
    """
    content = {"analyzer": analyzer, "analysis_version": analysis_version, "request": resolved}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


# Requirements by the type of pydantic's error; for other types pydantic's own message is good enough.
_MUST_BE = {
    "literal_error": "{expected}",
    "greater_than": "more than {gt:,}",
    "string_too_long": "at most {max_length:,} characters long",
    "greater_than_equal": "at least {ge:,}",
    "less_than_equal": "at most {le:,}",
    "less_than": "less than {lt:,}",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
}


def request_error(error: ValidationError) -> InvalidRequest:
    """Convert a request model's validation error to one sentence for the user."""
    first = error.errors(include_url=False)[0]
    name = ""
    for part in first["loc"]:  # ("pairs", 0, "output") -> "output of entry 1 of pairs"
        name = (f"entry {part + 1}" if isinstance(part, int) else part) + (f" of {name}" if name else "")
    if name and first["type"] in _MUST_BE:
        return InvalidRequest(f"{name} must be {_MUST_BE[first['type']].format(**first.get('ctx', {}))}{_instead_of(first['input'])}.")
    if name and first["type"] in ("string_too_short", "too_short") and first["input"] == "":
        return InvalidRequest(f"{name} is empty: give it a value, or omit it.")
    message = first["msg"].removeprefix("Value error, ")
    if name and not (first["type"] == "value_error" and name in re.findall(r"\w+", message)):
        return InvalidRequest(f"{name}: {message}.")
    return InvalidRequest(f"{message}." if name and message.startswith(name) else f"{message[:1].upper()}{message[1:]}.")


def _instead_of(given: object) -> str:
    """Write the given value after ", not", if it is short enough to be shown."""
    if isinstance(given, str):
        return f", not {json.dumps(given[:40])}"
    short = isinstance(given, float) or (isinstance(given, int) and given.bit_length() <= 64)
    return f", not {given}" if short else ""


def environment(device: str, libraries: tuple[str, ...]) -> Environment:
    """Return the interpreter, the machine, and the versions of those ``libraries`` that are loaded."""
    versions = {name: str(sys.modules[name].__version__) for name in libraries if name in sys.modules}
    machine = f"{platform.system()} {platform.machine()}"
    return Environment(python=platform.python_version(), machine=machine, device=device, libraries=versions)
