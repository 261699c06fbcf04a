"""The published table as it is printed, and where a sparsity stands in it."""

import pytest

from analyzers.update_sparsity.published import published, rank


def test_the_table_is_the_published_one() -> None:
    rows = published()
    assert len(rows) == 15 and [row.sparsity for row in rows] == sorted(row.sparsity for row in rows)
    assert all(0 < row.sparsity < 1 and row.base and row.finetuned and row.data for row in rows)
    assert {row.algorithm for row in rows} == {"SFT", "GRPO", "DAPO", "Reinforcement++"}
    assert str(rows[0]) == "Klear-Reasoner-8B-SFT (SFT, 0.6%)" and str(rows[-1]) == "UloRL-A3B (GRPO, 91.7%)"
    assert max(row.sparsity for row in rows if row.algorithm == "SFT") < min(row.sparsity for row in rows if row.algorithm != "SFT")


@pytest.mark.parametrize(
    ("sparsity", "sentence"),
    [
        (0.0, "Less sparse than all 15 published fine-tunes, next to Klear-Reasoner-8B-SFT (SFT, 0.6%)."),
        (0.0064, "Among the least sparse of 15 published fine-tunes, as sparse as Klear-Reasoner-8B-SFT (SFT, 0.6%)."),
        (
            0.69,
            "Sparser than 10 of 15 published fine-tunes, between UniReason-Qwen3-14B-RL (GRPO, 68.3%) and Klear-Reasoner-8B (GRPO, 69.5%).",
        ),
        (0.797, "Sparser than 12 of 15 published fine-tunes, as sparse as the authors' own (DAPO, 79.7%)."),
        (1.0, "Sparser than 15 of 15 published fine-tunes, next to UloRL-A3B (GRPO, 91.7%)."),
    ],
)
def test_the_sentence(sparsity: float, sentence: str) -> None:
    assert rank(sparsity) == sentence


def test_neighbours_are_the_nearest() -> None:
    rows = {round(1000 * row.sparsity): row for row in published()}
    for thousandths in range(1001):
        found = rank(thousandths / 1000)
        lower = [place for place in rows if place < thousandths]
        named = [rows[thousandths]] if thousandths in rows else [rows[place] for place in (*lower[-1:], *sorted(rows)[len(lower) :][:1])]
        assert all(str(row) in found for row in named)
        assert not lower or f"Sparser than {len(lower)} of {len(rows)}" in found
