"""Text from outside: seen as it is, in one line, of bounded length, and never HTML."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.dtype_detection import DtypeReport
from components.dtype import plots
from components.dtype.comparison import document
from components.dtype.labelled_models_plot import among_models
from components.dtype.result import RESULT
from components.dtype.several_models import Outcome, comparison
from components.results.answer import table
from components.text.plain_text import html, shown
from tests.components.dtype_reports import report

BIDI = "org/\u202egnp.exe\u2066\u200b"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain", "plain"),
        ("a\u202eb", "a<U+202E>b"),
        ("a\nb\tc\u2028d", "a b c d"),
        ("zero\u200bwidth", "zero<U+200B>width"),
        ("nul\x00", "nul<U+0000>"),
        ("lone\ud800", "lone<U+D800>"),
        ("日本語 é", "日本語 é"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, seen: str) -> None:
    assert shown(text) == seen


@given(st.text(max_size=400), st.integers(3, 50))
def test_anything_becomes_one_visible_line_of_bounded_length(text: str, longest: int) -> None:
    seen = shown(text, longest)
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in seen)
    assert len(seen) <= longest * len("<U+10FFFF>")
    assert not set('<>"') & set(html(text, longest))
    seen.encode()


def test_a_long_name_keeps_its_ends() -> None:
    seen = shown("a" * 3000 + "z", 21)
    assert len(seen) == 21
    assert seen == "a" * 10 + "…" + "a" * 9 + "z"


def test_no_hidden_character_reaches_the_page() -> None:
    """Wherever a name is shown: tiles, evidence, tables, figures, and the page that is taken along."""
    plain = report()
    tensor = plain.tensors[0].model_dump() | {"name": BIDI, "role": BIDI, "dtype": BIDI}
    hostile = report(
        BIDI,
        checkpoint=plain.checkpoint.model_dump() | {"ref": BIDI, "commit": BIDI},
        request={"model": BIDI, "subfolder": BIDI},
        config_dtype=BIDI,
        storage=[{"dtype": BIDI, "tensors": 1, "parameters": 1, "bytes": 1}],
        layers=[{"layer": 0, "role": BIDI, "tensors": 1, "parameters": 1, "abs_min_nonzero": 1.0, "abs_max": 1.0, "rms": 1.0}],
        tensors=[tensor],
        buffers=[{"name": BIDI, "dtype": BIDI, "shape": (1,)}],
        training=plain.training.model_dump() | {"basis": "label", "verdict": BIDI, "source": f"https://example.org/{BIDI}"},
    )
    drawn = [
        RESULT.headline(hostile, True),
        comparison([BIDI, BIDI, BIDI], [Outcome(BIDI, hostile), Outcome(BIDI, error=BIDI)]),
        str(table(DtypeReport, "tensors").table.value(hostile)),
        str(plots.layers(hostile).to_plotly_json()),
        str(among_models([hostile]).to_plotly_json()),
        document([Outcome(BIDI, hostile), Outcome(BIDI, error=BIDI)]).alone().split("<script>")[0],
    ]
    for text in drawn:
        assert "U+202E" in text
        assert not set("\u202e\u2066\u200b") & set(text)


def test_a_name_of_thousands_of_characters_stays_short_on_the_page_taken_along() -> None:
    long = "layers." + "x" * 3000
    tensor = report().tensors[0].model_dump() | {"name": long}
    assert "x" * 200 not in document([Outcome("m", report(tensors=[tensor]))]).alone().split("<script>")[0]
