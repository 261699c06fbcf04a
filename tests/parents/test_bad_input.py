"""Bad input: one sentence each, or an answer that says what cannot be told."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from analyzers.core import limits
from analyzers.core.errors import MantissaError
from analyzers.core.request import request_error
from tests.hub import LocalHub
from tests.parents.checkpoints import BF16, Folder, asked, model, tuned

FIRST, SECOND = model(10), model(11)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def refused(model: str, *candidates: str, **options: Any) -> str:
    try:
        with pytest.raises(MantissaError) as caught:
            asked(model, *candidates, **options)
        said = str(caught.value)
    except ValidationError as error:
        said = str(request_error(error))
    assert said.isprintable() and said.endswith(".") and len(said) < 600 and "Traceback" not in said
    return said


def test_no_candidate(folder: Folder) -> None:
    said = refused(folder.write("x", FIRST))
    assert said.startswith("No candidates: name checkpoints") and "names no other base_model" in said


def test_the_card_names_candidates(hub: LocalHub, folder: Folder) -> None:
    name = folder.write("x", FIRST)
    (Path(name) / "README.md").write_text("---\nlicense: mit\nbase_model:\n- nobody/here\ntags:\n- other/name\n---\n# A model\n")
    assert "nobody/here, the base_model of the model card, cannot be compared" in refused(name)
    for written in (
        "base_model: https://huggingface.co/nobody/here/tree/main",
        "base_model: 'nobody/here'",
        'base_model: ["nobody/here"]',
        "base_model:\n  - nobody/here",
    ):
        (Path(name) / "README.md").write_text(f"---\n{written}\nlicense: mit\n---\n")
        assert "nobody/here, the base_model" in refused(name)
    for broken in ("---\nbase_model: [\n---\n", "---\nbase_model: 3\n---\n", "no header", "---\n- a\n---\n", "\xff"):
        (Path(name) / "README.md").write_text(broken, encoding="latin-1")
        assert "names no other base_model" in refused(name)


def test_private_candidates_read_like_none(hub: LocalHub, folder: Folder) -> None:
    files = {path.name: path for path in Path(folder.write("x", FIRST)).iterdir()}
    hub.add("org/x", files)
    hub.add("org/secret", files, private=True)
    hub.add("org/gated", files, gated="manual")
    assert refused("org/x", "org/secret").replace("org/secret", "org/nobody") == refused("org/x", "org/nobody")
    assert refused("org/secret", "org/x").replace("org/secret", "org/nobody") == refused("org/nobody", "org/x")
    assert "org/gated" in refused("org/x", "org/gated") and "licen" in refused("org/x", "org/gated")
    assert refused("org/x", "org/x@main").startswith("Candidate, org/x, is the same checkpoint as one before it")


def test_no_candidate_of_the_same_shape(folder: Folder) -> None:
    said = refused(folder.write("x", FIRST), folder.write("other", {f"other.{name}": each[:7] for name, each in FIRST.items()}))
    assert said.startswith("There is nothing to compare")
    report = folder.parents(tuned(FIRST, 0.01), model(3, width=64), FIRST)
    assert report.verdict == "derived" and report.candidates[0].ref.endswith("c1")
    assert report.candidates[1].compared == 0 and report.candidates[1].cosine is None
    assert {note.code for note in report.notes} == {"not-compared"}


def test_the_model_itself_and_one_twice(folder: Folder) -> None:
    x, first = folder.write("x", FIRST), folder.write("first", SECOND)
    assert "the model itself" in refused(x, x)
    assert "the same checkpoint" in refused(x, f"{x}/")
    assert "named 2 times" in refused(x, first, first)
    assert "the same checkpoint" in refused(x, first, f"{first}/")


def test_too_many(folder: Folder) -> None:
    names = [f"org/m{number}" for number in range(100)]
    assert refused("org/x", *names) == f"At most {limits.CANDIDATES} candidates are compared, not 100."


def test_values_that_are_not_finite(folder: Folder) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    broken = FIRST[name].clone()
    broken[0, :5] = torch.tensor([float("nan"), float("inf"), -float("inf"), 3e38, -3e38], dtype=BF16)
    report = folder.parents(FIRST | {name: broken}, tuned(FIRST, 0.01), SECOND)
    assert report.verdict in ("derived", "undecided") and report.fit is not None
    assert folder.parents(FIRST | {name: broken.to(torch.float64) * 1e200}, FIRST).candidates[0].cosine is not None
    half = {name: value.clone() for name, value in FIRST.items()}
    matrices = [name for name, value in half.items() if value.ndim > 1]
    for name in matrices:
        half[name][1::2] = float("nan")
    report = folder.parents(half, FIRST)
    assert report.verdict == "derived" and report.answer.values["odd"] == len(matrices)
