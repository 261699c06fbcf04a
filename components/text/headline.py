"""Pieces of the headline, the first card of a result, in HTML: its head, the number with what it means, tiles. All of it escapes."""

from analyzers.base import CheckpointFacts, Interval
from analyzers.language_models.samples import SAMPLES
from components.text import numbers
from components.text.markup import head, tag, tile
from components.text.names import commit
from components.text.plain_text import html, prose

FACT = tag("fact", "fact")
ESTIMATE = tag("inference", "estimate")
UNKNOWN = tag("undecided", "not decided")


def card(name: str, *parts: str) -> str:
    """The card. name: what a screen reader calls it; parts: HTML."""
    return f'<section class="m-card" aria-label="{html(name)}">{"".join(parts)}</section>'


def model_head(name: str, checkpoint: CheckpointFacts, facts: str) -> str:
    """The model with the beginning of its commit, and a line of facts beside it."""
    return head(f"{html(name)}{short(checkpoint)}", facts)


def short(checkpoint: CheckpointFacts) -> str:
    """The beginning of the commit, small; nothing for a sample."""
    return f" <small>@&nbsp;{html(commit(checkpoint))}</small>" if commit(checkpoint) else ""


def about_sample(ref: str, shows: bool = False, more: str = "") -> str:
    """What a built-in sample is, for the truth about it is known; nothing for other models. shows: also of what it is an example."""
    sample = SAMPLES.get(ref.removeprefix("sample:")) if ref.startswith("sample:") else None
    if sample is None:
        return ""
    said = f"{sample.description}{more}." + (f" It shows {sample.shows}." if shows else "")
    return f'<p class="m-sample">A built-in sample: {html(said, 500)}</p>'


def number(title: str, value: str, interval: Interval | None, means: str) -> str:
    """The one number, its 95% interval of shares where it has one, and what it means, a sentence of the analyzer."""
    between = f"<small>95% interval: {html(numbers.between(interval))}</small>" if interval is not None else ""
    body = f'<p class="m-number">{html(value)}{between}</p><p class="m-means">{prose(means)}</p>'
    return f'<div class="m-headline"><h3>{html(title)}</h3>{body}</div>'


def reading(title: str, statement: str) -> str:
    """What was found, in plain words: the sentences of an analyzer, each in a line of its own."""
    sentences = statement.removesuffix(".").split(". ")
    listed = "".join(f"<li>{prose(sentence)}.</li>" for sentence in sentences)
    return f'<div class="m-headline"><h3>{html(title)}</h3><ul class="m-reading">{listed}</ul></div>'


def tiles(*each: str) -> str:
    """A row of tiles."""
    return f'<div class="m-tiles">{"".join(each)}</div>'


def answer(question: str, value: str, how: str, body: str) -> str:
    """A tile. how: the tag for how we know; body: plain text."""
    return tile(question, value, how, f"<p>{html(body, 500)}</p>")


def cannot_tell(question: str, why: str) -> str:
    """A tile without an answer. why: plain text."""
    return answer(question, "Cannot tell", UNKNOWN, why)
