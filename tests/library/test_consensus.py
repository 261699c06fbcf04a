"""The consensus of labels, compared with a plain count, and the rules that a reader would expect of it."""

from itertools import product

import pytest

from components.library import Identity, Label
from components.library.consensus import Consensus, consensus, kind_of
from components.library.items import SEED

WHO = {"login": Identity.login("ann"), "own": Identity.local(), "seed": Identity(name=SEED)}


def opinion(precision: str, who: str = "login", author: bool = False) -> Label:
    label = Label.of(WHO[who], "ann/name" if author else "org/name", precision, "", "section 3")
    assert label.author == author
    return label


def test_nothing_is_known_without_labels() -> None:
    assert consensus([]) == Consensus() and not Consensus().sentence


@pytest.mark.parametrize(
    ("opinions", "precision", "disputed", "contributors", "own"),
    [
        ([opinion("bf16")], "bf16", False, 1, False),
        ([opinion("bf16"), opinion("bf16")], "bf16", False, 2, False),
        ([opinion("bf16"), opinion("bf16-mixed"), opinion("bf16-mixed")], "bf16-mixed", False, 3, False),
        ([opinion("bf16"), opinion("bf16-mixed")], "bf16", False, 2, False),
        ([opinion("bf16"), opinion("bf16"), opinion("fp16")], "bf16", True, 2, False),
        ([opinion("bf16"), opinion("fp16")], None, True, 0, False),
        ([opinion("bf16"), opinion("fp16", author=True)], "fp16", True, 1, False),
        ([opinion("fp16", "own")], "fp16", False, 1, True),
        ([opinion("fp16", "own"), opinion("fp16")], "fp16", False, 2, False),
        ([opinion("fp16", "own"), opinion("bf16", "seed")], None, True, 0, False),
    ],
)
def test_what_most_contributors_say(opinions: list[Label], precision: str | None, disputed: bool, contributors: int, own: bool) -> None:
    for turned in (opinions, opinions[::-1]):
        found = consensus(turned)
        assert (found.precision, found.disputed, found.contributors, found.own) == (precision, disputed, contributors, own)


def test_as_counted_plainly() -> None:
    for names in product(("bf16", "bf16-mixed", "fp16", "fp32"), repeat=4):
        found = consensus([opinion(name) for name in names])
        kinds = [kind_of(name) for name in names]
        most = max(kinds.count(kind) for kind in kinds)
        leading = {kind for kind in kinds if kinds.count(kind) == most}
        assert found.disputed == (len(set(kinds)) > 1) and (found.precision is None) == (len(leading) > 1)
        if found.precision is not None:
            assert kind_of(found.precision) in leading and found.contributors == most
        assert {vote.precision: vote.contributors for vote in found.votes} == {name: names.count(name) for name in names}
