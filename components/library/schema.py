"""Defines the items of the library: labels, flags, results, and who contributed them. Items are validated wherever they come from.

An item's ``id`` is its content address: the same contribution made twice, or read back from the dataset, is one item.
"""

import hashlib
import os
import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from analyzers.checkpoints.reference import quoted
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.records import Record
from components.library.item_checks import address, checked_link, checked_time, hub_id, read_model, readable, visible

# Ways in which a model can have been trained; the first word is the kind that `dtype_detection` distinguishes.
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
# Decisions of moderators about a label, whatever its flags. They are flags too, so that the dataset contains a log of them.
HIDE, SHOW = DECISIONS = ("hidden by a moderator", "shown by a moderator")
# Raised when a field changes its meaning; rows of a later version are refused.
VERSION = 1

Provenance = Literal["login", "local", "seed"]

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
# Names without a login contain a colon, which names on the Hub cannot: nobody can impersonate a user.
_NAMES = {"login": _NAME, "local": re.compile(r"local:[0-9a-f]{12}"), "seed": re.compile(r"seed:[a-z]{1,40}")}


def _one_of(name: str, values: tuple[str, ...]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)}, not {quoted(value)}")
        return value

    return AfterValidator(check)


# pydantic looks for a pattern anywhere in a text
Id = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
OptionalId = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}(\+[0-9a-f]{7,64}){0,8}$")]  # of a base and its adapters, in order
OptionalUser = Annotated[str, Field(pattern=f"^({_NAME.pattern})?$")]
Time = Annotated[str, AfterValidator(checked_time)]
Visible = Annotated[str, AfterValidator(visible)]
Quote = Annotated[str, Field(max_length=limits.EVIDENCE_QUOTE_LENGTH)]


class Identity(Record):
    """The identity of a contributor, made by the server from a login or from its own secrets, never from a visitor's input.

    provenance: "login" of the Hub; "local" without a login; "seed" for the initial labels. organisations: known organisations of a login; a
    model of one of them, or of the user, is marked as labelled by its author. address: without a login, a salted hash for the hourly limit,
    which is never stored.
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
        """Return the identity of a user of the Hub. Raises InvalidRequest for an invalid user name."""
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"{quoted(name)} is not a valid user name on the Hub.")
        return cls(name=name, provenance="login", organisations=organisations)

    @classmethod
    def local(cls, secret: str, address: str = "") -> Self:
        """Return the identity of a visitor without a login, given a secret that is not stored: ``local:`` and 12 hex digits of its hash."""
        return cls(name=f"local:{hashlib.sha256(secret.encode()).hexdigest()[:12]}", provenance="local", address=address)

    @property
    def moderates(self) -> bool:
        """Return whether the user is in MANTISSA_MODERATORS, a comma-separated list of user names."""
        names = os.environ.get("MANTISSA_MODERATORS", "").lower().split(",")
        return self.provenance == "login" and self.name.lower() in map(str.strip, names)

    @property
    def shown(self) -> str:
        """Name as displayed, marked if there is no login behind it."""
        return f"{self.name} (no login)" if self.provenance == "local" else self.name

    def wrote(self, model: str) -> bool:
        """Return whether ``model`` belongs to the user or to one of the user's organisations."""
        owner, slash, _ = model.partition("/")
        mine = {name.lower() for name in (self.name, *self.organisations)}
        return self.provenance == "login" and bool(slash) and owner.lower() in mine


class Contribution(Record):
    """An item of a contributor. Its id is the SHA-256 of the fields that `said` names, usually without the time.

    Descriptions of fields, here and below, are also those of the columns in the card of the dataset.
    """

    kind: ClassVar[str]

    id: Id = Field(description="SHA-256 of the content")
    version: Literal[1] = Field(default=1, description="of this table; rows of a later one are ignored")
    contributor: str = Field(description="user name on the Hub; local:... without a login; seed:... for the initial labels")
    provenance: Provenance = Field(
        description="login of the Hub; local: no login, a proposal that does not count until a login adds the same label; or seed"
    )
    created: Time = Field(description="when it was added, UTC")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _check_contributor(self.contributor, self.provenance)
        if self.id != address(self.kind, self.model_dump(include=self.said(self.model_dump()))):
            raise ValueError("the id does not match the content")
        return self

    @classmethod
    def said(cls, item: dict[str, Any]) -> set[str]:
        """Return the names of the fields that identify ``item``."""
        raise NotImplementedError

    @classmethod
    def made(cls, who: Identity, created: str, fields: dict[str, Any]) -> Self:
        """Make a new item of ``who`` with its id. Raises pydantic's ValidationError."""
        item: dict[str, Any] = {"version": VERSION, "contributor": who.name, "provenance": who.provenance, "created": created} | fields
        content = {name: value for name, value in item.items() if name in cls.said(item)}
        return cls(id=address(cls.kind, content), **item)


class Label(Contribution):
    """A contributor's statement about the precision a model was trained in, with evidence: a link, a quote, or both."""

    kind = "label"

    model: Annotated[str, Field(max_length=200), AfterValidator(hub_id)] = Field(description="canonical id on the Hub")
    precision: Annotated[str, _one_of("precision", PRECISIONS)] = Field(description="what the model was trained in, by this contributor")
    evidence_link: Annotated[
        str, Field(max_length=limits.EVIDENCE_LINK_LENGTH), AfterValidator(lambda link: link and checked_link(link))
    ] = Field(default="", description="address of the evidence, never opened by Mantissa")
    evidence_quote: Annotated[Quote, AfterValidator(lambda quote: quote and readable(quote))] = Field(
        default="", description="quoted evidence; a label has a link, a quote, or both"
    )
    author: bool = Field(default=False, description="the contributor belongs to the model's organisation")
    replaces: OptionalId = Field(default="", description="id of the contributor's previous label of the model; empty for the first")

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
        """Make a new label. Raises pydantic's ValidationError."""
        fields = {"model": model, "precision": precision, "evidence_link": link, "evidence_quote": quote, "replaces": replaces}
        return cls.made(who, created, fields | {"author": who.wrote(model)})


class Flag(Contribution):
    """A contributor's doubt about a label, one per label and contributor, or a decision of a moderator."""

    kind = "flag"

    label: Id = Field(description="id of the label in doubt")
    reason: Annotated[str, _one_of("reason", FLAG_REASONS + DECISIONS)] = Field(
        description="what is wrong with the label, or what a moderator decided about it"
    )
    text: Annotated[Quote, AfterValidator(visible)] = Field(default="", description="details")

    @classmethod
    def said(cls, item: dict[str, Any]) -> set[str]:
        return {"label", "contributor", "provenance"} | ({"reason", "created"} if item["reason"] in DECISIONS else set())

    @classmethod
    def of(cls, who: Identity, label: str, reason: str, text: str, *, created: str) -> Self:
        """Make a new flag. Raises pydantic's ValidationError."""
        return cls.made(who, created, {"label": label, "reason": reason, "text": text})


class Result(Record):
    """A stored report: its subject, and the facts that lists show. Its JSON is stored separately, byte for byte."""

    id: Id = Field(description="id of the report: SHA-256 of the request and of what it was made of")
    version: Literal[1] = Field(default=1, description="of this table; rows of a later one are ignored")
    key: OptionalId = Field(default="", description="by which the same request finds the report; may be empty")
    analyzer: str = Field(pattern="^[a-z]{1,20}$", description="which analysis")
    analysis_version: int = Field(ge=1, le=10**6, description="of the analysis")
    models: tuple[Annotated[str, AfterValidator(read_model)], ...] = Field(
        min_length=1, max_length=limits.TRAJECTORY + 1, description="the models read: the subject first, a base last"
    )
    commits: tuple[Commit, ...] = Field(min_length=1, max_length=limits.TRAJECTORY + 1, description="their commits, in the same order")
    created: Time = Field(description="when the report was made, UTC")
    contributor: OptionalUser = Field(default="", description="who contributed it; empty for the app")
    size: int = Field(ge=2, le=limits.RESULT_BYTES, description="bytes of the report")
    whole: bool = Field(default=True, description="it is about every tensor: no filter was set")
    mode: Visible = Field(default="", max_length=20, description="exact or quick; this and the next four are empty where not applicable")
    storage: Visible = Field(default="", max_length=200, description="dtypes that the weights are stored in")
    passed_through: Visible = Field(
        default="",
        max_length=200,
        description="formats provably passed through, after mixed if by parts only; else the verdict",
    )
    trained_in: Visible = Field(default="", max_length=40, description="training precision that the magnitudes resemble")
    fp16_risk: Visible = Field(default="", max_length=20, description="whether the weights fit fp16")
    abs_min: float | None = Field(
        default=None, description="smallest magnitude; this and the next three: of exact reports, of the base model"
    )
    abs_max: float | None = Field(default=None, description="largest magnitude")
    norm_min: float | None = Field(default=None, description="smallest norm of a tensor")
    norm_max: float | None = Field(default=None, description="largest norm of a tensor")
    reach: Visible = Field(
        default="", max_length=40, description="how much the report covers, and how much of a sample may differ; empty for all of it"
    )

    @property
    def sample(self) -> bool:
        """Return whether a built-in sample is among the models: such results have no repository and are not published."""
        return any("sample:" in model for model in self.models)


def _check_contributor(name: str, provenance: Provenance) -> None:
    """Raise ValueError if a contributor's name does not match its provenance."""
    if not _NAMES[provenance].fullmatch(name):
        raise ValueError("the contributor's name does not match its provenance")
