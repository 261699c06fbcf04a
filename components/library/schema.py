"""The items of the library: labels, flags, results, and who contributed them. Validated wherever they come from.

An item's ``id`` is its content address: the same contribution made twice, or read back from the dataset, is one item.
"""

import hashlib
import os
import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from analyzers import limits
from analyzers.checkpoints.reference import quoted
from analyzers.data import Data
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
# What moderators decide about a label, whatever its flags. Their decisions are flags too, so that the dataset has the log of them.
HIDE, SHOW = DECISIONS = ("hidden by a moderator", "shown by a moderator")
# Raised when a field changes its meaning; rows of a later version are refused.
VERSION = 1

Provenance = Literal["login", "local", "seed"]

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
# Names without a login have a colon, which names on the Hub cannot have: nobody can impersonate a user.
_NAMES = {"login": _NAME, "local": re.compile(r"local:[0-9a-f]{12}"), "seed": re.compile(r"seed:[a-z]{1,40}")}
_HEX = r"[0-9a-f]{64}"


def _one_of(name: str, values: tuple[str, ...]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)}, not {quoted(value)}")
        return value

    return AfterValidator(check)


def _commit(commit: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{7,64}", commit):
        raise ValueError("commits must be hex digits")
    return commit


def _user(name: str) -> str:
    if name and not _NAME.fullmatch(name):
        raise ValueError("a contributor's name is letters, digits, '-', '_' and '.'")
    return name


Id = Annotated[str, Field(pattern=_HEX)]
OptionalId = Annotated[str, Field(pattern=f"|{_HEX}")]
Time = Annotated[str, AfterValidator(checked_time)]
Visible = Annotated[str, AfterValidator(visible)]
Quote = Annotated[str, Field(max_length=limits.EVIDENCE_QUOTE_LENGTH)]


class Identity(Data):
    """Who contributes. Made by the server from a login or from its own secrets, never from a visitor's input.

    provenance: "login" of the Hub; "local" without a login; "seed" for the initial labels.
    organisations: the known ones of a login; a model of one of them, or of the user, is marked as labelled by its author.
    address: without a login, a salted hash for the hourly limit, which is never stored.
    """

    name: str
    provenance: Provenance
    organisations: tuple[str, ...] = ()
    address: str = ""

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
    def local(cls, secret: str, address: str = "") -> Self:
        """A visitor without a login, identified by a secret that is not stored: ``local:`` and 12 hex digits of its hash."""
        return cls(name=f"local:{hashlib.sha256(secret.encode()).hexdigest()[:12]}", provenance="local", address=address)

    @property
    def moderates(self) -> bool:
        """Whether the user is one of MANTISSA_MODERATORS, a list of user names with commas."""
        names = os.environ.get("MANTISSA_MODERATORS", "").lower().split(",")
        return self.provenance == "login" and self.name.lower() in map(str.strip, names)

    @property
    def shown(self) -> str:
        """The name as displayed, marked if there is no login behind it."""
        return f"{self.name} (no login)" if self.provenance == "local" else self.name

    def wrote(self, model: str) -> bool:
        """Whether ``model`` is one of the user's own or of an organisation of theirs."""
        owner, slash, _ = model.partition("/")
        mine = {name.lower() for name in (self.name, *self.organisations)}
        return self.provenance == "login" and bool(slash) and owner.lower() in mine


class Contribution(Data):
    """An item of a contributor. created: UTC. Its id is the SHA-256 of the fields that `said` names: usually not the time."""

    kind: ClassVar[str]

    id: Id
    version: Literal[1] = 1
    contributor: str
    provenance: Provenance
    created: Time

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _check_contributor(self.contributor, self.provenance)
        if self.id != address(self.kind, self.model_dump(include=self.said(self.model_dump()))):
            raise ValueError("the id does not match the content")
        return self

    @classmethod
    def said(cls, item: dict[str, Any]) -> set[str]:
        """The names of the fields that make ``item`` another one if they differ."""
        raise NotImplementedError

    @classmethod
    def made(cls, who: Identity, created: str, fields: dict[str, Any]) -> Self:
        """A new item of ``who`` with its id. Raises pydantic's ValidationError."""
        item: dict[str, Any] = {"version": VERSION, "contributor": who.name, "provenance": who.provenance, "created": created} | fields
        content = {name: value for name, value in item.items() if name in cls.said(item)}
        return cls(id=address(cls.kind, content), **item)


class Label(Contribution):
    """A contributor's statement about the precision a model was trained in, with evidence.

    model: canonical id. evidence_link: an address, never fetched; evidence_quote: text; at least one of them. author: the contributor
    belongs to the model's organisation. replaces: id of the contributor's previous label, empty for the first.
    """

    kind = "label"

    model: Annotated[str, Field(max_length=200), AfterValidator(hub_id)]
    precision: Annotated[str, _one_of("precision", PRECISIONS)]
    evidence_link: Annotated[
        str, Field(max_length=limits.EVIDENCE_LINK_LENGTH), AfterValidator(lambda link: link and checked_link(link))
    ] = ""
    evidence_quote: Annotated[Quote, AfterValidator(lambda quote: quote and readable(quote))] = ""
    author: bool = False
    replaces: OptionalId = ""

    @model_validator(mode="after")
    def _has_evidence(self) -> Self:
        if not self.evidence_link and not self.evidence_quote:
            raise ValueError("a label needs evidence: a link, or a quote with its source")
        if self.author and self.provenance != "login":
            raise ValueError("an author needs a login")
        return self

    @classmethod
    def said(cls, item: dict[str, Any]) -> set[str]:
        return {"version", "model", "precision", "evidence_link", "evidence_quote", "contributor", "provenance", "replaces"}

    @classmethod
    def of(cls, who: Identity, model: str, precision: str, link: str, quote: str, *, created: str, replaces: str = "") -> Self:
        """A new label. Raises pydantic's ValidationError."""
        fields = {"model": model, "precision": precision, "evidence_link": link, "evidence_quote": quote, "replaces": replaces}
        return cls.made(who, created, fields | {"author": who.wrote(model)})


class Flag(Contribution):
    """A contributor's doubt about a label, one for each label and contributor; or one of the decisions of a moderator."""

    kind = "flag"

    label: Id
    reason: Annotated[str, _one_of("reason", FLAG_REASONS + DECISIONS)]
    text: Annotated[Quote, AfterValidator(visible)] = ""

    @classmethod
    def said(cls, item: dict[str, Any]) -> set[str]:
        return {"label", "contributor", "provenance"} | ({"reason", "created"} if item["reason"] in DECISIONS else set())

    @classmethod
    def of(cls, who: Identity, label: str, reason: str, text: str, *, created: str) -> Self:
        """A new flag. Raises pydantic's ValidationError."""
        return cls.made(who, created, {"label": label, "reason": reason, "text": text})


class Result(Data):
    """A stored report: its subject, and the facts that lists show. Its JSON is stored separately, byte for byte.

    id: that of the report. key: the caller's key for looking requests up. models: the subject first, a base last; commits: theirs.
    size: bytes of JSON. whole: of every tensor, without filters. mode to fp16_risk: empty if the analyzer has no such fact;
    passed_through: the proven ancestors, else the verdict ("native", "undecided"). abs_min to norm_max: over the base model (see
    `dtype_detection.labels.Example`), of exact reports with a row for every tensor. reach: how much the report covers, if that is not the
    whole checkpoint and known; and of a sample, how much of the checkpoint may differ.
    """

    id: Id
    version: Literal[1] = 1
    key: OptionalId = ""
    analyzer: str = Field(pattern=r"[a-z]{1,20}")
    analysis_version: int = Field(ge=1, le=10**6)
    models: tuple[Annotated[str, AfterValidator(lambda model: model if model.startswith("sample:") else hub_id(model))], ...] = Field(
        min_length=1, max_length=limits.TRAJECTORY + 1
    )
    commits: tuple[Annotated[str, AfterValidator(_commit)], ...] = Field(min_length=1, max_length=limits.TRAJECTORY + 1)
    created: Time
    contributor: Annotated[str, AfterValidator(_user)] = ""
    size: int = Field(ge=2, le=limits.RESULT_BYTES)
    whole: bool = True
    mode: Visible = Field(default="", max_length=20)
    storage: Visible = Field(default="", max_length=200)
    passed_through: Visible = Field(default="", max_length=200)
    trained_in: Visible = Field(default="", max_length=40)
    fp16_risk: Visible = Field(default="", max_length=20)
    abs_min: float | None = None
    abs_max: float | None = None
    norm_min: float | None = None
    norm_max: float | None = None
    reach: Visible = Field(default="", max_length=40)

    @property
    def sample(self) -> bool:
        """Whether a built-in sample is among the models: such results have no repository and are not published."""
        return any(model.startswith("sample:") for model in self.models)


def _check_contributor(name: str, provenance: Provenance) -> None:
    """Raises ValueError."""
    if not _NAMES[provenance].fullmatch(name):
        raise ValueError("the contributor's name does not match its provenance")
