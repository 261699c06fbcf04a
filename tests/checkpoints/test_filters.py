"""Name filters: what they choose, and that no pattern of a stranger's takes for ever."""

from time import monotonic, process_time

import pytest

from analyzers.checkpoints import Tensor, select
from analyzers.core.errors import InvalidFilter


def named(*names: str) -> list[Tensor]:
    return [Tensor(name, "F32", (1,), 0, 4 * i, 4, "other", None, False) for i, name in enumerate(names)]


TENSORS = named("model.embed.weight", "model.layers.0.mlp.up.weight", "model.layers.10.mlp.up.weight", "lm_head.weight")


def names(include: str | None, exclude: str | None) -> list[str]:
    return [t.name for t in select(TENSORS, include, exclude)]


def test_patterns_are_searched_anywhere_and_combined() -> None:
    assert names("mlp", None) == ["model.layers.0.mlp.up.weight", "model.layers.10.mlp.up.weight"]
    assert names(r"layers\.0\.", None) == ["model.layers.0.mlp.up.weight"]
    assert names(None, "layers") == ["model.embed.weight", "lm_head.weight"]
    assert names("^model", r"layers\.1") == ["model.embed.weight", "model.layers.0.mlp.up.weight"]
    assert names("embed|lm_head", None) == ["model.embed.weight", "lm_head.weight"]


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


@pytest.mark.parametrize("pattern", ["a{1000000000}", "(?:a{9999}){9999}", "a{ 99999 }", "((a{300,}){300}b){2}", "a{1,99999}"])
def test_counted_repeats_that_would_fill_memory_are_refused(pattern: str) -> None:
    start = process_time()
    with pytest.raises(InvalidFilter, match="repeats more than"):
        select(TENSORS, pattern, None)
    assert process_time() - start < 10
