"""The published table as it is printed, and where a sparsity stands in it."""

from analyzers.comparison.sparsity.published import less_sparse, published


def test_the_table_is_the_published_one() -> None:
    rows = published()
    assert len(rows) == 15 and [row.sparsity for row in rows] == sorted(row.sparsity for row in rows)
    assert all(0 < row.sparsity < 1 and row.base_model and row.finetuned and row.data for row in rows)
    assert {row.algorithm for row in rows} == {"SFT", "GRPO", "DAPO", "Reinforcement++"}
    assert (rows[0].finetuned, rows[0].sparsity) == ("Klear-Reasoner-8B-SFT", 0.006)
    assert (rows[-1].finetuned, rows[-1].sparsity) == ("UloRL-A3B", 0.917)
    assert max(row.sparsity for row in rows if row.algorithm == "SFT") < min(row.sparsity for row in rows if row.algorithm != "SFT")


def test_a_sparsity_is_ranked_to_a_tenth_of_a_percent() -> None:
    assert [less_sparse(each) for each in (0.0, 0.0064, 0.69, 0.797, 0.7974, 0.798, 1.0)] == [0, 0, 10, 12, 12, 13, 15]
