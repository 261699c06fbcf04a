"""Sentences that do not say more than the numbers do."""

import re
from pathlib import Path

import torch

from analyzers.numerics import PairCounts
from analyzers.records import Interval
from analyzers.update_sparsity.sentences import statement
from tests.dtype_detection.checkpoints import normal, write
from tests.update_sparsity.checkpoints import pair
from tests.update_sparsity.oracle_comparison import compare


def said(changed: int, differ: int | None = None, interval: Interval | None = None, same: bool = False) -> str:
    counts = PairCounts(values=1000, changed=changed, differ=changed if differ is None else differ)
    return statement(same, counts, interval.estimate if interval else 1 - changed / 1000, interval, 300 if interval else None)


def test_the_headline_in_words() -> None:
    assert said(28) == "97.2% of the weights are unchanged in bf16, 2.8% differ."
    assert said(0, same=True) == "Both sides are the same checkpoint, file for file: nothing changed."
    assert said(0) == "None of the 1,000 weights compared differ."
    assert "though 12% differ as stored" in said(0, differ=120)
    assert said(1000) == "Every one of the 1,000 weights changed in bf16."
    assert statement(False, PairCounts(), None, None) == "No values could be compared."


def test_a_shorter_tensor_in_the_middle_of_a_trajectory_is_said(tmp_path: Path) -> None:
    base = {"model.embed_tokens.weight": normal(8, 4), "model.norm.weight": normal(4)}
    shorter = base | {"model.embed_tokens.weight": base["model.embed_tokens.weight"][:6].clone()}
    ends = pair(tmp_path, base, base)
    report = compare(ends[0], write(tmp_path / "middle", shorter), ends[1])
    assert [row.total_parameters for row in report.trajectory] == [28, 36]
    assert "Tuned 1 of 2: 1 tensor has fewer rows in it than in the base, so its shares cover fewer weights." in report.notes


def test_one_of_anything(tmp_path: Path) -> None:
    """What is counted is one throughout: of parameters, of tensors of every kind that is not compared, of pairs without a number."""
    assert statement(False, PairCounts(values=1), 1.0, None) == "The one weight compared does not differ."
    assert statement(False, PairCounts(values=1, changed=1, differ=1), 0.0, None) == "The one weight compared changed in bf16."
    square = normal(2, 2)
    nan = square.clone()
    nan[0, 0] = torch.nan
    base = {"embed_tokens.weight": normal(1, 4), "a.weight": nan, "gone.weight": normal(1), "turned.weight": normal(2, 3)}
    tuned = {"embed_tokens.weight": normal(2, 4), "a.weight": square, "new.weight": normal(1), "turned.weight": normal(3, 2)}
    base["b.weight"], tuned["b.weight"] = square, torch.ones(2, 2, dtype=torch.bool)
    report = compare(*pair(tmp_path, base, tuned))
    said = "\n".join([report.statement, *report.notes])
    for part in (
        "Not compared: 1 tensor that only the base has, 1 parameter (",
        "Compared in the most usual layout of their shapes (transposed)",
        "Not compared: 1 tensor that holds no plain floats",
        "has 1 row in the base and 2 in the tuned checkpoint: the first was compared",
        "1 pair has a NaN or an infinity",
    ):
        assert part in said
    alone = compare(*pair(tmp_path / "alone", {"a.weight": normal(1)}, {"a.weight": normal(1)}))
    assert re.search(r"^Compared +1 parameter$", alone.text(), re.MULTILINE)


def test_a_name_stays_on_its_line_and_looks_the_same_everywhere(tmp_path: Path) -> None:
    base, tuned = {"a.weight": normal(4, 4), "b\n\u202e.weight": normal(1)}, {"a.weight": normal(4, 4)}
    report = compare(*pair(tmp_path, base, tuned))
    assert "\nOnly in the base: b<U+000A><U+202E>.weight\n" in report.text()
    assert '1 parameter ("b<U+000A><U+202E>.weight").' in report.notes[0]


def test_a_sample_is_said_to_be_one() -> None:
    some = said(28, interval=Interval(estimate=0.97, low=0.96, high=0.98))
    assert some.startswith("About 97% of the weights") and "96% to 98%" in some and some.endswith("about 3% differ.")
    none = said(0, interval=Interval(estimate=1, low=0.998, high=1))
    bounded = (
        "none in the 300 blocks read, so in at most 0.2% of the whole with 95% confidence. At least 99.8% of all weights are unchanged"
    )
    assert none.startswith(f"None of the 1,000 weights read differ: {bounded}")
    assert "read changed in bf16" in said(0, differ=3, interval=Interval(estimate=1, low=0.998, high=1))
    every = said(1000, interval=Interval(estimate=0, low=0, high=0.002))
    assert every.startswith("Every one of the 1,000 weights read changed") and "at most 0.2%" in every
