"""The items of the library: labels, flags, results, and who contributed them. Validated wherever they come from.

An item's ``id`` is its content address: the same contribution made twice, or read back from the dataset, is one item.
"""

import hashlib
import re
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from analyzers import limits
from analyzers.base import Data
from analyzers.checkpoints.reference import quoted
from analyzers.errors import InvalidRequest
from components.library.checks import address, checked_link, checked_time, hub_id, readable, visible

# How a model can have been trained; the first word is the kind that `dtype_detection` distinguishes.
PRECISIONS = (
    "fp32",
    "tf32",
    "fp16",
    "fp16-mixed",
    "bf16",
    "bf16-mixed",
    "fp8",
    "fp8-mixed",
    "mxfp4",
    "mxfp4-post-trained",
)
FLAG_REASONS = ("wrong precision", "the evidence does not say so", "another model", "spam or abuse")
# Raised when a field changes its meaning; rows of a later version are refused.
VERSION = 1

Provenance = Literal["login", "local", "seed"]

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
# Names without a login have a colon, which names on the Hub cannot have: nobody can impersonate a user.
_NAMES = {"login": _NAME, "local": re.compile(r"local:[0-9a-f]{12}"), "seed": re.compile(r"seed:[a-z]{1,40}")}
_HEX = r"[0-9a-f]{64}"


class Identity(Data):
    """Who contributes. Made by the server from a login or from its own secrets, never from a visitor's input.

    provenance: "login" of the Hub; "local" without a login; "seed" for the initial labels.
    organisations: the known ones of a login; a model of one of them, or of the user, is marked as labelled by its author.
    """

    name: str
    provenance: Provenance
    organisations: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _known(self) -> Self:
        _check_contributor(self.name, self.provenance)
        return self

    @classmethod
    def login(cls, name: str, organisations: tuple[str, ...] = ()) -> Self:
        """A user of the Hub. Raises InvalidRequest for an invalid user name."""
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"{quoted(name)} is not a valid user name on the Hub.")
        return cls(name=name, provenance="login", organisations=organisations)

    @classmethod
    def local(cls, secret: str) -> Self:
        """A visitor without a login, identified by a secret that is not stored: ``local:`` and 12 hex digits of its hash."""
        return cls(name=f"local:{hashlib.sha256(secret.encode()).hexdigest()[:12]}", provenance="local")

    @property
    def shown(self) -> str:
        """The name as displayed, marked if there is no login behind it."""
        return f"{self.name} (no login)" if self.provenance == "local" else self.name

    def wrote(self, model: str) -> bool:
        """Whether ``model`` is one of the user's own or of an organisation of theirs."""
        owner, slash, _ = model.partition("/")
        mine = {name.lower() for name in (self.name, *self.organisations)}
        return self.provenance == "login" and bool(slash) and owner.lower() in mine


class Label(Data):
    """A contributor's statement about the precision a model was trained in, with evidence.

    model: canonical id. evidence_link: an address, never fetched; evidence_quote: text; at least one of them. author: the contributor
    belongs to the model's organisation. created: UTC. replaces: id of the contributor's previous label, empty for the first.
    """

    id: str = Field(pattern=_HEX)
    version: Literal[1] = 1
    model: str = Field(max_length=200)
    precision: str
    evidence_link: str = Field(default="", max_length=limits.EVIDENCE_LINK_LENGTH)
    evidence_quote: str = Field(default="", max_length=limits.EVIDENCE_QUOTE_LENGTH)
    contributor: str
    provenance: Provenance
    author: bool = False
    created: str
    replaces: str = Field(default="", pattern=f"|{_HEX}")

    @field_validator("model")
    @classmethod
    def _canonical(cls, model: str) -> str:
        return hub_id(model)

    @field_validator("precision")
    @classmethod
    def _known(cls, precision: str) -> str:
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {quoted(precision)}")
        return precision

    @field_validator("evidence_link")
    @classmethod
    def _address(cls, link: str) -> str:
        return link and checked_link(link)

    @field_validator("evidence_quote")
    @classmethod
    def _readable(cls, quote: str) -> str:
        return quote and readable(quote)

    @field_validator("created")
    @classmethod
    def _time(cls, created: str) -> str:
        return checked_time(created)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _check_contributor(self.contributor, self.provenance)
        if not self.evidence_link and not self.evidence_quote:
            raise ValueError("a label needs evidence: a link, or a quote with its source")
        if self.author and self.provenance != "login":
            raise ValueError("an author needs a login")
        if self.id != self.address():
            raise ValueError("the id does not match the content")
        return self

    def address(self) -> str:
        """SHA-256 of the content, without the time and the author mark."""
        return address("label", self.model_dump(exclude={"id", "author", "created"}))

    @classmethod
    def of(cls, who: Identity, model: str, precision: str, link: str, quote: str, *, created: str, replaces: str = "") -> Self:
        """A new label. Raises pydantic's ValidationError."""
        fields: dict[str, Any] = {"version": VERSION, "model": model, "precision": precision, "evidence_link": link}
        fields |= {"evidence_quote": quote, "contributor": who.name, "provenance": who.provenance, "replaces": replaces}
        return cls(id=address("label", fields), author=who.wrote(model), created=created, **fields)


class Flag(Data):
    """A contributor's doubt about a label: one for each label and contributor."""

    id: str = Field(pattern=_HEX)
    version: Literal[1] = 1
    label: str = Field(pattern=_HEX)
    reason: str
    text: str = Field(default="", max_length=limits.EVIDENCE_QUOTE_LENGTH)
    contributor: str
    provenance: Provenance
    created: str

    @field_validator("reason")
    @classmethod
    def _known(cls, reason: str) -> str:
        if reason not in FLAG_REASONS:
            raise ValueError(f"reason must be one of: {'; '.join(FLAG_REASONS)}; not {quoted(reason)}")
        return reason

    @field_validator("text")
    @classmethod
    def _visible(cls, text: str) -> str:
        return visible(text)

    @field_validator("created")
    @classmethod
    def _time(cls, created: str) -> str:
        return checked_time(created)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _check_contributor(self.contributor, self.provenance)
        if self.id != self.address():
            raise ValueError("the id does not match the content")
        return self

    def address(self) -> str:
        """SHA-256 of the label flagged and who flagged it."""
        return address("flag", self.model_dump(include={"label", "contributor", "provenance"}))

    @classmethod
    def of(cls, who: Identity, label: str, reason: str, text: str, *, created: str) -> Self:
        """A new flag. Raises pydantic's ValidationError."""
        said = {"label": label, "contributor": who.name, "provenance": who.provenance}
        return cls(id=address("flag", said), reason=reason, text=text, created=created, **said)  # type: ignore[arg-type]


class Result(Data):
    """A stored report: its subject, and the facts that lists show. Its JSON is stored separately, byte for byte.

    id: that of the report. key: the caller's key for looking requests up. models: the subject first, a base last; commits: theirs.
    size: bytes of JSON. whole: of every tensor, without filters. mode to fp16_risk: empty if the analyzer has no such fact;
    passed_through: the proven ancestors, else the verdict ("native", "undecided"). abs_min to norm_max: over the base model (see
    `dtype_detection.labels.LabelledExtremes`), of exact reports with a row for every tensor.
    """

    id: str = Field(pattern=_HEX)
    version: Literal[1] = 1
    key: str = Field(default="", pattern=f"|{_HEX}")
    analyzer: str = Field(pattern=r"[a-z]{1,20}")
    analysis_version: int = Field(ge=1, le=10**6)
    models: tuple[str, ...] = Field(min_length=1, max_length=limits.TRAJECTORY + 1)
    commits: tuple[str, ...] = Field(min_length=1, max_length=limits.TRAJECTORY + 1)
    created: str
    contributor: str = ""
    size: int = Field(ge=2, le=limits.RESULT_BYTES)
    whole: bool = True
    mode: str = Field(default="", max_length=20)
    storage: str = Field(default="", max_length=200)
    passed_through: str = Field(default="", max_length=200)
    trained_in: str = Field(default="", max_length=40)
    fp16_risk: str = Field(default="", max_length=20)
    abs_min: float | None = None
    abs_max: float | None = None
    norm_min: float | None = None
    norm_max: float | None = None

    @field_validator("created")
    @classmethod
    def _time(cls, created: str) -> str:
        return checked_time(created)

    @field_validator("models")
    @classmethod
    def _named(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(model if model.startswith("sample:") else hub_id(model) for model in models)

    @field_validator("commits")
    @classmethod
    def _commits(cls, commits: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.fullmatch(r"[0-9a-f]{7,64}", commit) for commit in commits):
            raise ValueError("commits must be hex digits")
        return commits

    @field_validator("mode", "storage", "passed_through", "trained_in", "fp16_risk")
    @classmethod
    def _visible(cls, text: str) -> str:
        return visible(text)

    @field_validator("contributor")
    @classmethod
    def _name(cls, name: str) -> str:
        if name and not _NAME.fullmatch(name):
            raise ValueError("a contributor's name is letters, digits, '-', '_' and '.'")
        return name

    @property
    def sample(self) -> bool:
        """Whether a built-in sample is among the models: such results have no repository and are not published."""
        return any(model.startswith("sample:") for model in self.models)


def _check_contributor(name: str, provenance: Provenance) -> None:
    """Raises ValueError."""
    if not _NAMES[provenance].fullmatch(name):
        raise ValueError("the contributor's name does not match its provenance")
