"""Values that only moved: everything is compared, nothing changed, and each tensor is found where it came from."""

from pathlib import Path

import torch

from analyzers.core.coverage import Coverage
from tests.layouts.pairs import Pair, even_pairs, modes, odd_pairs, parents, rows_by_name, sparsity, whole_name


def complete(coverage: tuple[Coverage, ...], parameters: int) -> None:
    """Both sides are covered as a whole, and each has the parameters of the model."""
    assert len(coverage) == 2
    for each in coverage:
        assert each.whole and each.share == 1 and each.covered == each.weights == parameters, each
        assert each.left_out == () and each.suffix() == ""


@odd_pairs
def test_nothing_changed(number: int, pair: Pair, tmp_path: Path) -> None:
    state = pair.original.state
    sides = pair.write(tmp_path, state, pair.form(pair.original, state))
    base, tuned = sides if number % 2 else sides[::-1]
    for mode in modes(pair):
        report = sparsity(base, tuned, mode)
        assert (report.num_changed, report.probe.num_changed, report.swallowed.count) == (0, 0, 0)
        assert report.values_compared == report.total_parameters == pair.parameters
        complete(report.coverage, pair.parameters)


@even_pairs
def test_the_same_weights(number: int, pair: Pair, tmp_path: Path) -> None:
    original = pair.original.state
    relaid = pair.form(pair.original, original)
    sides = pair.write(tmp_path, original, relaid)
    is_model = number % 2 == 0  # the re-laid one is the model, or the candidate
    model, candidate = sides[::-1] if is_model else sides
    state, source_state = (relaid, original) if is_model else (original, relaid)
    origins = pair.origins(to_original=is_model)
    for mode in modes(pair):
        report = parents(model, candidate, mode)
        assert report.verdict == "same-weights", report.answer
        complete(report.coverage, pair.parameters)
        rows = rows_by_name(report)
        assert pair.weights(state) <= set(rows) <= set(state)
        for row in report.conversion:
            assert (row.relation, row.exceptions) == ("equal", 0), row
        assert sum(row.values for name in pair.weights(state) for row in rows[name]) == pair.parameters
        for name in pair.weights(state):
            sources = {whole_name(source) for row in rows[name] for source in row.sources}
            copied = any(map(pair.is_copy, origins[name]))
            assert sources == origins[name] or (copied and sources and sources < origins[name]), name
            moved = not any(
                state[name].shape == source_state[each].shape and torch.equal(state[name], source_state[each]) for each in sources
            )
            assert not moved or all(row.form != "as stored" for row in rows[name]), name
