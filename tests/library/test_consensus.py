"""The consensus of labels, beside one counted the slow way, and the rules that a reader would expect of it."""

from itertools import product

import pytest

from components.library import Identity, Label, LabelRow
from components.library.consensus import Consensus, consensus, kind_of
from components.library.initial_labels import SEED
from components.library.item_checks import now

WHO = {"login": Identity.login("ann"), "local": Identity.local("secret"), "seed": SEED}


def opinion(precision: str, provenance: str = "login", author: bool = False, own: bool = False) -> LabelRow:
    model = "ann/name" if author else "org/name"
    label = Label.of(WHO[provenance], model, precision, "", "section 3", created=now())
    assert label.author == author
    proposal = provenance == "local" and not own
    return LabelRow(label=label, current=True, flags=0, proposal=proposal, state="saved here", commit="")


def verdict(opinions: list[LabelRow]) -> Consensus:
    return consensus("org/name", opinions)


def test_nothing_is_known_without_labels() -> None:
    found = verdict([])
    assert (found.precision, found.disputed, found.contributors, found.votes) == (None, False, 0, ())
    assert found.sentence == found.evidence == ""


@pytest.mark.parametrize(
    ("opinions", "precision", "disputed", "contributors"),
    [
        ([opinion("bf16")], "bf16", False, 1),
        ([opinion("bf16"), opinion("bf16")], "bf16", False, 2),
        ([opinion("bf16"), opinion("bf16-mixed"), opinion("bf16-mixed")], "bf16-mixed", False, 3),
        ([opinion("bf16"), opinion("bf16-mixed")], "bf16", False, 2),
        ([opinion("bf16"), opinion("bf16"), opinion("fp16")], "bf16", True, 2),
        ([opinion("bf16"), opinion("fp16")], None, True, 0),
        ([opinion("bf16"), opinion("fp16", author=True)], "fp16", True, 1),
        ([opinion("bf16", "seed"), *[opinion("fp16", "local")] * 9], "bf16", False, 1),
        ([opinion("fp16", "local"), opinion("fp16", "local")], None, False, 0),
        ([opinion("fp16", "local"), opinion("fp16")], "fp16", False, 1),
        ([opinion("fp16", "local", own=True)], "fp16", False, 1),
        ([opinion("fp16", "local", own=True), opinion("bf16", "seed")], None, True, 0),
    ],
)
def test_what_most_contributors_say(opinions: list[LabelRow], precision: str | None, disputed: bool, contributors: int) -> None:
    for turned in (opinions, opinions[::-1]):
        found = verdict(turned)
        assert (found.precision, found.disputed, found.contributors) == (precision, disputed, contributors)


def test_as_counted_by_hand() -> None:
    for names in product(("bf16", "bf16-mixed", "fp16", "fp32"), repeat=4):
        found = verdict([opinion(name) for name in names])
        kinds = [kind_of(name) for name in names]
        most = max(kinds.count(kind) for kind in kinds)
        leading = {kind for kind in kinds if kinds.count(kind) == most}
        assert found.disputed == (len(set(kinds)) > 1)
        assert (found.precision is None) == (len(leading) > 1)
        if found.precision is not None:
            assert kind_of(found.precision) in leading and found.contributors == most
        assert {vote.precision: vote.contributors for vote in found.votes} == {name: names.count(name) for name in names}
