"""The sparsity page's form, link and command: the state of the page as text."""

import shlex
from typing import Any
from urllib.parse import parse_qsl

import pytest

from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.update_sparsity.report import SparsityRequest
from components.forms.form import as_read, command, permalink
from components.sparsity.form import filled, request
from tests.components.sparsity_reports import COMMIT, sparsity_report, trajectory

MOST = 12


def test_each_picker_may_name_several_in_order_and_empty_ones_count_for_nothing() -> None:
    asked = request(
        {"base": "a/b", "tuned": ["c/d@1, c/d@2", "", " c/d@1\n"], "mode": "exact", "include": "mlp", "eta": "5e-4", "spectral": True}
    )
    tuned = ("c/d@1", "c/d@2", "c/d@1")
    assert asked == SparsityRequest(base="a/b", tuned=tuned, mode="exact", include="mlp", eta=5e-4, spectral=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"base": ""},
        {"tuned": ["", " , "]},
        {"eta": "0"},
        {"eta": "nan"},
        {"tuned": ["c/d "] * (limits.TRAJECTORY + 1)},
        {"tuned": ["x" * 100_000]},
        {"budget": "-1"},
    ],
)
def test_bad_fields_are_one_sentence(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request({"base": "a/b", "tuned": ["c/d"]} | fields)
    assert str(caught.value).endswith(".") and len(str(caught.value)) < 400


def test_a_permalink_and_a_command_lead_back_to_the_same_request() -> None:
    names = (f"org/tuned@{i:040x}" for i in range(1, MOST + 3))
    asked = SparsityRequest(
        base=f"org/base@{COMMIT}", tuned=tuple(names), budget=5_000_000, include="a|b&x=1", subfolder="a b", seed=7, eta=5e-4, spectral=True
    )
    made = sparsity_report(**trajectory(MOST + 2) | {"request": asked.model_dump(), "eta": asked.eta})
    assert request(filled(parse_qsl(permalink(as_read(made)).removeprefix("?")))) == asked
    words = shlex.split(command(as_read(made)))
    assert words[:2] == ["mantissa", "sparsity"]
    assert (words[2], *words[3 : 5 + MOST]) == (asked.base, *asked.tuned)
    assert words[5 + MOST :] == [
        "--budget=5000000",
        "--include=a|b&x=1",
        "--subfolder=a b",
        "--seed=7",
        "--eta=0.0005",
        "--spectral",
    ]
