"""Name filters: what they choose, and that no pattern of a stranger's takes for ever."""

import warnings
from time import monotonic, process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.checkpoints import Tensor, select
from analyzers.core.errors import InvalidFilter


def named(*names: str) -> list[Tensor]:
    return [Tensor(name, "F32", (1,), 0, 4 * i, 4, "other", None, False) for i, name in enumerate(names)]


TENSORS = named("model.embed.weight", "model.layers.0.mlp.up.weight", "model.layers.10.mlp.up.weight", "lm_head.weight")


def names(include: str | None, exclude: str | None) -> list[str]:
    return [t.name for t in select(TENSORS, include, exclude)]


def test_no_filter_is_everything_in_order() -> None:
    assert select(TENSORS, None, None) == TENSORS
    assert select(TENSORS, "", "") == TENSORS
    assert select([], None, None) == []


def test_patterns_are_searched_anywhere_and_combined() -> None:
    assert names("mlp", None) == ["model.layers.0.mlp.up.weight", "model.layers.10.mlp.up.weight"]
    assert names(r"layers\.0\.", None) == ["model.layers.0.mlp.up.weight"]
    assert names(None, "layers") == ["model.embed.weight", "lm_head.weight"]
    assert names("^model", r"layers\.1") == ["model.embed.weight", "model.layers.0.mlp.up.weight"]
    assert names("embed|lm_head", None) == ["model.embed.weight", "lm_head.weight"]


@given(st.lists(st.text("abc.", max_size=6), max_size=8), st.text("abc", min_size=1, max_size=3), st.text("abc", min_size=1, max_size=3))
def test_plain_words_choose_by_containment(tensors: list[str], include: str, exclude: str) -> None:
    expected = [name for name in tensors if include in name and exclude not in name]
    if expected:
        assert [t.name for t in select(named(*tensors), include, exclude)] == expected
    else:
        with pytest.raises(InvalidFilter):
            select(named(*tensors), include, exclude)


@pytest.mark.parametrize(
    "pattern", ["(", "[a", "*", "(?P<n>", "a{2,1}", "\\", "(?<=a+)b(", "(" * 5000 + ")" * 5000, "(?Z)(?P=x)", "\\N{no such}"]
)
@pytest.mark.parametrize("which", ["include", "exclude"])
def test_what_does_not_compile_is_refused_by_name(pattern: str, which: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        select(TENSORS, *((pattern, None) if which == "include" else (None, pattern)))
    message = str(caught.value)
    assert which in message and "\n" not in message and len(message) < 300


@pytest.mark.parametrize("pattern", ["(a+)+$", "(?:a|aa)+$", "(a*)*b", "((a{1,99}){1,99}){1,99}$", "(?P<n>a)(?&n)(?R)", "(.*a){25}b"])
def test_endless_patterns_are_given_up(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzers.checkpoints.tensor_names.filters.FILTER_SECONDS", 0.3)
    start = monotonic()
    with pytest.raises(InvalidFilter, match=r"takes more than 0.3 seconds|No tensor|repeats more than"):
        select(named(*["a" * 4000 + "!"] * 50), pattern, None)
    assert monotonic() - start < 100


def test_the_time_is_shared_by_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzers.checkpoints.tensor_names.filters.FILTER_SECONDS", 0.2)
    slow = named(*["a" * 22 + "!"] * 100_000)
    start = monotonic()
    with pytest.raises(InvalidFilter, match="takes more than"):
        select(slow, None, "^(a+)+$")
    assert monotonic() - start < 100


def test_nothing_left_is_refused() -> None:
    for tensors, include, exclude in ((TENSORS, "decoder", None), ([], "a", None), (TENSORS, None, "weight")):
        with pytest.raises(InvalidFilter):
            select(tensors, include, exclude)


def test_hostile_names_stay_short_and_on_one_line_in_messages() -> None:
    with pytest.raises(InvalidFilter) as caught:
        select(named("\x1b[31m\nred" * 1000), "nothing", None)
    assert len(str(caught.value)) < 300 and str(caught.value).isprintable()


@pytest.mark.parametrize("pattern", ["[[a-z]", "[a&&b]", "[a||b]", "(?i)(?i)a", "a(?i)b"])
def test_odd_patterns_do_not_warn(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused = "not a regular expression"
        try:
            select(named("a", "ab"), pattern, None)
        except InvalidFilter as error:
            refused = str(error)
    assert "not a regular expression" in refused


@pytest.mark.parametrize("pattern", ["a{1000000000}", "(?:a{9999}){9999}", "a{ 99999 }", "((a{300,}){300}b){2}", "a{1,99999}"])
def test_counted_repeats_that_would_fill_memory_are_refused(pattern: str) -> None:
    start = process_time()
    with pytest.raises(InvalidFilter, match="repeats more than"):
        select(TENSORS, pattern, None)
    assert process_time() - start < 10
