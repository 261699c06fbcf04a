"""The classifier fitted on the library's labels, beside the one that ships."""

import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from analyzers import limits
from analyzers.dtype_detection.classifier import fitted
from analyzers.dtype_detection.fit_classifier import candidates, choose, fit
from analyzers.dtype_detection.labels import examples
from analyzers.errors import InvalidRequest, LibraryUnavailable, LimitExceeded
from components.library import Identity, Library
from components.library.database import Database
from components.library.exports import training_set
from tests.components.reports import report
from tests.dtype_detection.fits import assert_same_fit

ANN = Identity.login("ann")


def _with_extremes(library: Library, model: str = "org/name") -> None:
    """A label of a model whose extremes are stored: one more for the classifier."""
    assert library.add_result(report(model, id="a" * 64, mode="exact"), public=True) is not None
    library.add_label(model, "bf16", "section 3", ANN)


def _settled(library: Library) -> None:
    end = time.monotonic() + 240
    while library.fitting().running:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_the_labels_that_ship_give_the_classifier_that_ships(tmp_path: Path) -> None:
    with Library.open(tmp_path) as library:
        standing = library.fitting()
        assert (standing.fit, standing.outdated, standing.running, standing.problem) == (None, True, False, "")
        assert library.refit() == fitted() == library.fitting().fit
        assert not library.fitting().outdated
        library.add_label("org/without-extremes", "bf16", "section 3", ANN)
        assert library.fitting().outdated
        assert library.refit() == fitted() and not library.fitting().outdated


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_label_more_is_fitted_as_the_command_fits_it_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Library.open(tmp_path / "data") as library:
        _with_extremes(library)
        library.refit_soon()
        _settled(library)
        standing = library.fitting()
        assert (standing.outdated, standing.problem) == (False, "")
        exported = tmp_path / "library-labels.csv"
        library.training_set(exported)
        known = examples(exported)
        assert standing.fit is not None
        assert_same_fit(standing.fit.classifier, fit(known, choose(known, candidates())))
        assert standing.fit.evaluation.models == fitted().evaluation.models + 1
        monkeypatch.setattr(sys, "executable", "/nowhere")  # a second fit would fail
        library.add_label("org/without-extremes", "bf16", "section 3", ANN)
        assert library.refit() == standing.fit
        (tmp_path / "data" / "classifier.json").write_text("{}")
        assert library.fitting().fit is None


def test_it_is_fitted_in_the_background_one_at_a_time_and_not_too_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, proceed = threading.Event(), threading.Event()

    def slowly(database: Database, path: Path) -> int:
        begun.set()
        assert proceed.wait(60)
        return training_set(database, path)

    with Library.open(tmp_path) as library:
        monkeypatch.setattr("components.library.refit.training_set", slowly)
        library.refit_soon()
        assert begun.wait(60) and library.fitting().running and library.fitting().fit is None
        with pytest.raises(LibraryUnavailable, match="being fitted"):
            library.refit()
        proceed.set()
        _settled(library)
        first = library.fitting()
        assert first.fit == fitted()
        library.add_label("org/without-extremes", "bf16", "section 3", ANN)
        library.refit_soon()
        _settled(library)
        assert library.fitting() == first.model_copy(update={"outdated": True})
        monkeypatch.setattr(limits, "REFIT_SECONDS", 0)
        library.refit_soon()
        _settled(library)
        assert not library.fitting().outdated
    assert {file.name for file in tmp_path.iterdir() if "library.sqlite3" not in file.name} == {"classifier.json"}


def test_what_fails_is_a_sentence_and_the_last_fit_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REFIT_SECONDS", 0)
    with Library.open(tmp_path) as library:
        library.refit()
        _with_extremes(library)
        monkeypatch.setattr(limits, "FIT_SECONDS", 0.01)
        with pytest.raises(LimitExceeded, match="MANTISSA_FIT_SECONDS"):
            library.refit()
        library.refit_soon()
        _settled(library)
        assert "MANTISSA_FIT_SECONDS" in library.fitting().problem and library.fitting().fit == fitted()
        monkeypatch.setattr(limits, "FIT_SECONDS", 60)
        monkeypatch.setattr("components.library.refit.training_set", lambda _, path: path.write_text("model_id\n"))
        with pytest.raises(InvalidRequest, match=r"library-labels\.csv must have the columns"):
            library.refit()


def test_closing_ends_a_fit(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with Library.open(tmp_path) as library:
        _with_extremes(library)
        library.refit_soon()
        until = time.monotonic() + 60
        while not set(psutil.Process().children()) - before:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert not set(psutil.Process().children()) - before and not (tmp_path / "classifier.json").exists()
