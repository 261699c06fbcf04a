"""The figures of gradient conflict: what they draw."""

import json
from typing import Any

import pytest

from components.conflict import plots
from tests.components.conflict_reports import conflict_report, top_k

ALL = (plots.rates, plots.similarity, plots.cosines, plots.dominance, plots.batches, plots.deciles, plots.published)


def test_rates_and_similarities_are_drawn_by_layer_with_their_intervals_top_k_beside_the_original() -> None:
    found = top_k()
    assert found.original is not None
    for draw, name, interval, scale in (
        (plots.rates, "conflict_rate", "interval", 100),
        (plots.similarity, "magnitude_similarity", "magnitude_interval", 1),
    ):
        figure: Any = draw(found)
        assert [trace.name for trace in figure.data] == ["top-k FFN", "original FFN"]
        assert figure.layout.showlegend
        for trace, ffn in zip(figure.data, ("topk", "original"), strict=True):
            rows = {row.layer: row for row in found.layers if row.ffn == ffn}
            assert list(trace.x) == [0, 1, 2, 3]
            for place, layer in enumerate(trace.x):
                value, between = getattr(rows[layer], name), getattr(rows[layer], interval)
                assert trace.y[place] == pytest.approx(scale * value)
                assert trace.y[place] + trace.error_y.array[place] == pytest.approx(scale * between.high)
                assert trace.y[place] - trace.error_y.arrayminus[place] == pytest.approx(scale * between.low)
    alone: Any = plots.rates(conflict_report())
    assert [trace.name for trace in alone.data] == ["neurons"] and not alone.layout.showlegend


@pytest.mark.parametrize("samples", [2, 3])
def test_two_samples_are_enough_to_draw(samples: int) -> None:
    found = conflict_report(samples=samples)
    for draw in ALL:
        json.dumps(draw(found).to_plotly_json(), default=list, allow_nan=False)
