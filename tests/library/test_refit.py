"""The classifier fitted on the library's labels, beside the one that ships."""

from pathlib import Path

from analyzers.dtype_detection.classifier import FITTED, Fit
from components.library import Identity, Library


def test_the_seed_gives_the_classifier_that_ships_and_it_is_kept(tmp_path: Path) -> None:
    shipped = Fit.model_validate_json(FITTED.read_text(encoding="utf-8"))
    with Library.open(tmp_path) as library:
        assert library.last_fit() is None
        found = library.refit()
        assert found.classifier.examples == shipped.classifier.examples
        assert found.evaluation.likeliest_correct == shipped.evaluation.likeliest_correct
        assert found.command.endswith("--labels library-labels.csv")
        kept = tmp_path / "classifier.json"
        written = kept.stat().st_mtime_ns
        assert library.refit() == library.last_fit() == found
        library.add_label("org/without-extremes", "bf16", "section 3", Identity.login("ann"))
        assert library.refit() == found and kept.stat().st_mtime_ns == written
        kept.write_text("{}")
        assert library.last_fit() is None
