"""The published table as it is printed, and where a sparsity stands in it."""

from analyzers.comparison.sparsity.published import less_sparse


def test_a_sparsity_is_ranked_to_a_tenth_of_a_percent() -> None:
    assert [less_sparse(each) for each in (0.0, 0.0064, 0.69, 0.797, 0.7974, 0.798, 1.0)] == [0, 0, 10, 12, 12, 13, 15]
