"""The samples of a run as tokens, and where they come from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from analyzers.core.notes import Note
from analyzers.language_models.instruction_data import Instructions
from analyzers.language_models.load import OpenModel
from analyzers.language_models.prompts import Encoded, Template
from analyzers.language_models.tokenizer import Tokenized
from analyzers.language_models.words import WORDS


@dataclass(frozen=True, slots=True)
class Samples:
    """Tokenized samples. text: their source; longest: the length to which they are truncated; tokenized: None if tokens were given."""

    encoded: list[Encoded]
    text: Instructions
    longest: int
    tokenized: Tokenized | None

    @property
    def truncated(self) -> int:
        """The number of samples that were shortened."""
        return sum(each.truncated for each in self.encoded)

    @property
    def answer_tokens(self) -> int:
        """The number of answer tokens."""
        return sum(len(each.token_ids) - each.answer_start for each in self.encoded)

    def notes(self, requested: int) -> Iterator[Note]:
        """Yield notes on data with fewer samples than requested, or of which only a part was read, and on truncated samples."""
        count = len(self.encoded)
        if self.text.limited:
            yield WORDS.note("limited-rows", rows=self.text.total)
        if count < requested:
            yield WORDS.note("few-samples", source=self.text.source, samples=count, requested=requested)
        if self.truncated:
            yield WORDS.note("truncated", longest=self.longest, truncated=self.truncated, samples=count)


def tokenized_samples(
    request: Any, opened: OpenModel, text: Callable[[], Instructions], longest: int, template: Template = "auto"
) -> Samples:
    """Return the given tokens of a request, or else tokenize ``text``, truncated to ``longest`` tokens or the model's context."""
    longest = min(longest, opened.context or longest)
    if request.token_ids:
        return Samples(request.encoded(opened), request.instructions(), longest, None)
    pairs = text()
    tokenized = opened.tokenizer.samples(pairs.pairs, longest, template)
    return Samples(tokenized.samples, pairs, longest, tokenized)
