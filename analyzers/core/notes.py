"""Notes: facts worth telling, as a code with values, and the one sentence that the code's template makes of them."""

from typing import Self

from pydantic import Field

from analyzers.core.records import Interval, Record

Value = bool | int | float | str | tuple[str, ...] | Interval | None


class Note(Record):
    """A fact worth telling.

    code: names the fact, for programs, and the template of its sentence; values: fill the template; text: the sentence, which people read
    and no program does.
    """

    code: str
    values: dict[str, Value] = Field(default_factory=dict)
    text: str

    def __str__(self) -> str:
        """Return the sentence."""
        return self.text

    def about(self, side: str) -> Self:
        """Return the note with the name of the side of a comparison that it is about."""
        return self.model_copy(update={"values": {**self.values, "side": side}, "text": f"{side}: {self.text}"})


class Advice(Note):
    """What to do about a result. analyzer: answers the next question about the same ``model``."""

    analyzer: str
    model: str


class Tile(Record):
    """The short answer to one question, for page, card, badge, Markdown and terminal.

    kind: the evidence: fact, proof, label, inference, estimate, warning, or undecided; whole: it holds whatever was left unread; detail: a
    sentence or two.
    """

    label: str
    value: str
    kind: str
    detail: str = ""
    whole: bool = False
