"""Declares what a page shows before there is a result: its question, its form and its examples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Question:
    """The question of a page.

    heading: the question; about: what it does and costs, in a sentence or two; button: its label; examples: label of each example -> the
    fields of its request, the first of which is the finished result that the page opens with; front: the options in view, at most four (the
    others are folded); less: how to make a run cheaper, for the sentence of a limit; tokens: most tokens that a request runs through the
    model, over all passes.
    """

    heading: str
    about: str
    button: str
    examples: Mapping[str, Mapping[str, Any]]
    front: Sequence[str]
    less: str
    tokens: Callable[[Any], int] = lambda request: 0
