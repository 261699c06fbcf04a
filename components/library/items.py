"""Defines the items of the library: labels, the rows of results, and their contributors. Items are validated wherever they come from."""

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from analyzers.checkpoints.reference import quoted
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.records import Record
from components.library.evidence import hub_id, page_link, quote, read_model, visible

# Ways in which a model can have been trained; the first word is the kind that `dtype` distinguishes.
Precision = Literal["fp32", "tf32", "fp16", "fp16-mixed", "bf16", "bf16-mixed", "fp8", "fp8-mixed", "mxfp4", "mxfp4-post-trained"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
# Names of contributors without a login contain a colon, which names on the Hub cannot: nobody can impersonate a user.
OWNER, SEED = "local:owner", "seed:mantissa"
_LOGIN = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
_FORM = "%Y-%m-%dT%H:%M:%S.%fZ"


def now() -> str:
    """Return the current time, UTC, in the library's format, which sorts as text."""
    return timestamp(datetime.now(UTC))


def timestamp(time: datetime) -> str:
    """Format a time in the library's format."""
    return time.astimezone(UTC).strftime(_FORM)


def just_after(created: str) -> str:
    """Return now, or a time just after ``created`` if a clock went back: no label may be older than the one it replaces."""
    return max(now(), timestamp(datetime.strptime(created, _FORM).replace(tzinfo=UTC) + timedelta(microseconds=1)))


def _checked_time(created: str) -> str:
    if not _CREATED.fullmatch(created) or datetime.fromisoformat(created) > datetime.now(UTC) + timedelta(days=1):
        raise ValueError("a time must look like 2026-11-21T23:58:43.123456Z, and not be in the future")
    return created


# pydantic looks for a pattern anywhere in a text
Id = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
OptionalId = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}(\+[0-9a-f]{7,64}){0,8}$")]  # of a base and its adapters, in order
Time = Annotated[str, AfterValidator(_checked_time)]
Visible = Annotated[str, AfterValidator(visible)]


class Identity(Record):
    """The identity of a contributor, made by the server from a login, never from a visitor's input.

    organisations: those of the login; a model of one of them, or of the user, is marked as labelled by its author.
    """

    name: str = Field(pattern=f"^({_LOGIN}|{OWNER}|{SEED})$")
    organisations: tuple[str, ...] = ()

    @classmethod
    def login(cls, name: str, organisations: tuple[str, ...] = ()) -> Self:
        """Return the identity of a user of the Hub. Raises InvalidRequest for an invalid user name."""
        if not re.fullmatch(_LOGIN, name):
            raise InvalidRequest(f"{quoted(name)} is not a valid user name on the Hub.")
        return cls(name=name, organisations=organisations)

    @classmethod
    def local(cls) -> Self:
        """Return the identity of the owner of an app that nobody else reaches."""
        return cls(name=OWNER)

    def wrote(self, model: str) -> bool:
        """Return whether ``model`` belongs to the user or to one of the user's organisations."""
        owner, slash, _ = model.partition("/")
        return ":" not in self.name and bool(slash) and owner.lower() in {name.lower() for name in (self.name, *self.organisations)}


class Label(Record):
    """A contributor's statement about the precision a model was trained in, with evidence: a link, a quote, or both.

    id: the SHA-256 of the content without the time, so that one contribution is one item however often it is stored.
    """

    id: Id
    version: Literal[1] = 1
    model: Annotated[str, Field(max_length=200), AfterValidator(hub_id)]
    precision: Precision
    evidence_link: Annotated[str, AfterValidator(page_link)] = ""
    evidence_quote: Annotated[str, Field(max_length=limits.EVIDENCE_QUOTE_LENGTH), AfterValidator(quote)] = ""
    contributor: str = Field(pattern=f"^({_LOGIN}|{OWNER}|{SEED})$")
    author: bool = False
    replaces: OptionalId = ""
    created: Time

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.evidence_link and not self.evidence_quote:
            raise ValueError("a label needs evidence: a link, or a quote with its source")
        if self.author and not self.login:
            raise ValueError("an author needs a login")
        if self.id != _address(self.model_dump(exclude={"id", "created", "author"})):
            raise ValueError("the id does not match the content")
        return self

    @classmethod
    def of(cls, who: Identity, model: str, precision: str, link: str, words: str, *, created: str = "", replaces: str = "") -> Self:
        """Make a new label. Raises pydantic's ValidationError."""
        content = {"version": 1, "model": model, "precision": precision, "evidence_link": link, "evidence_quote": words}
        content |= {"contributor": who.name, "replaces": replaces}
        return cls.model_validate(content | {"id": _address(content), "author": who.wrote(model), "created": created or now()})

    @property
    def login(self) -> bool:
        """Return whether a login is behind it."""
        return ":" not in self.contributor

    @property
    def evidence(self) -> str:
        """The link, or else the quote."""
        return self.evidence_link or self.evidence_quote


def _address(content: dict[str, Any]) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of a label's content."""
    text = json.dumps(["label", content], sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class ResultRow(Record):
    """A stored report: what it is about, and the facts that lists show. Its JSON is in a file of its own.

    key: by which the same request finds it. models, commits: the subject first, a base last. answer: the verdict's sentence. whole: no
    filter was set. mode to norm_max: of passports, empty where not applicable; the magnitudes are those of exact ones, of the base model.
    bytes: of the model's files; wasted: of these, what could be saved without changing a value. shapes: see `same_shapes`.
    """

    id: Id
    version: Literal[1] = 1
    key: OptionalId = ""
    analyzer: str = Field(pattern="^[a-z]{1,20}$")
    analysis_version: int = Field(ge=1, le=10**6)
    models: tuple[Annotated[str, AfterValidator(read_model)], ...] = Field(min_length=1, max_length=limits.TRAJECTORY + 1)
    commits: tuple[Commit, ...] = Field(min_length=1, max_length=limits.TRAJECTORY + 1)
    created: Time
    answer: Visible = Field(default="", max_length=500)
    mode: Visible = Field(default="", max_length=20)
    whole: bool = True
    storage: Visible = Field(default="", max_length=200)
    passed_through: Visible = Field(default="", max_length=200)
    trained_in: Visible = Field(default="", max_length=40)
    fp16_risk: Visible = Field(default="", max_length=20)
    reach: Visible = Field(default="", max_length=60)
    abs_min: float | None = None
    abs_max: float | None = None
    norm_min: float | None = None
    norm_max: float | None = None
    bytes: int | None = Field(default=None, ge=0, le=10**18)
    wasted: int | None = Field(default=None, ge=0, le=10**18)
    shapes: str = Field(default="", pattern="^([0-9a-f]{32})?$")
