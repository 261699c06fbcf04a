"""Defines pairs of checkpoints with the same values in another layout or file format, and runs reports on them."""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from analyzers.comparison.parents import ParentsReport
from analyzers.comparison.parents.report import Conversion
from analyzers.comparison.sparsity import SparsityReport
from tests.cases import few
from tests.layouts.architectures import ARCHITECTURES, Architecture, State, architecture
from tests.layouts.file_formats import WRITERS, write
from tests.layouts.relayouts import FORMS, GGUF, Form, chained, provenance
from tests.parents.checkpoints import asked
from tests.update_sparsity.oracle_comparison import compare

# Forms to apply one after the other, and the file format of the result.
_COMBINATIONS = (
    (("qkv in blocks", "gate and up fused"), "shards"),
    (("qkv in blocks", "gate and up fused", "data parallel"), "pickle"),
    (("qkv by group", "compiled"), "shards"),
    (("qkv by head", "data parallel"), "pickle"),
    (("qkv one by one", "body alone"), "pickle"),
    (("rotary rows", "qkv in blocks"), "safetensors"),
    (("Meta", "data parallel"), "pickle"),
    (("InternLM", "data parallel"), "shards"),
    (("qkv in blocks", "transposed"), "safetensors"),
    (("qkv by head", "transposed"), "shards"),
    (("in_proj", "body alone"), "pickle"),
    (("copies of the embedding", "transposed"), "pickle"),
    (("copies of the embedding", "wrapped by peft"), "safetensors"),
    (("copies of the embedding", "qkv in blocks", "compiled"), "shards"),
    (("qkv in blocks", "experts stacked, gate and up fused"), "pickle"),
    (("qkv by group", "experts stacked, gate and up alternating, inputs first", "data parallel"), "shards"),
    (("experts one by one", "data parallel"), "shards"),
    (("experts stacked in blocks", "qkv in blocks"), "pickle"),
    (("timm", "data parallel"), "pickle"),
    (("weight_g and weight_v", "qkv in blocks"), "shards"),
    (("gamma and beta", "qkv in blocks", "data parallel"), "pickle"),
    (("gate and up one by one", "qkv one by one"), "shards"),
    (("transposed", "compiled"), "pickle"),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A checkpoint as transformers saves it, and its values in ``form``, written by ``writer``."""

    architecture: str
    form: Form
    writer: str

    def __str__(self) -> str:
        return f"{self.architecture}: {self.form.name}, {self.writer}"

    @property
    def original(self) -> Architecture:
        """The checkpoint as transformers saves it."""
        return architecture(self.architecture)

    def write(self, folder: Path, original: State, relaid: State) -> tuple[Path, Path]:
        """Write both checkpoints."""
        return (
            write(folder / "original", original, self.original.config),
            WRITERS[self.writer](folder / "relaid", relaid, self.original),
        )

    @property
    def parameters(self) -> int:
        """Number of elements of the model, each counted once."""
        return sum(tensor.numel() for tensor in self.original.state.values())

    def origins(self, to_original: bool) -> dict[str, set[str]]:
        """Return tensors of one side -> those of the other with the same values, including copies of the embedding."""
        found = provenance(self.form, self.original)
        if to_original:
            return found
        return {name: {each for each, sources in found.items() if name in sources} for name in self.original.state}

    def is_copy(self, name: str) -> bool:
        """Return whether a tensor of either side is a copy of the embedding."""
        return name.endswith(self.original.tied) if self.original.tied else False

    def weights(self, state: State) -> set[str]:
        """Return the names of a state except copies of the embedding."""
        return {name for name in state if not self.is_copy(name)}


def _singles() -> list[Pair]:
    pairs = [Pair(name, FORMS["as saved"], writer) for name in ARCHITECTURES for writer in ("safetensors", "shards", "pickle")]
    writers = ("safetensors", "safetensors", "shards", "pickle")
    for form in list(FORMS.values())[1:]:
        for at, name in enumerate(form.architectures):
            pairs.append(Pair(name, form, "GGUF" if form.name == "llama.cpp" else writers[at % len(writers)]))
    return pairs


def _combined() -> list[Pair]:
    forms = [(chained(*(FORMS[name] for name in names)), writer) for names, writer in _COMBINATIONS]
    return [Pair(name, form, writer) for form, writer in forms for name in form.architectures]


PAIRS = tuple(_singles() + _combined())
assert len(set(map(str, PAIRS))) == len(PAIRS) >= 200 and set(GGUF) == {pair.architecture for pair in PAIRS if pair.writer == "GGUF"}


def _some() -> list[Pair]:
    """Choose a quarter of the architectures as saved, and one for each form and each third combination, evenly."""
    tried, some = Counter[str](), list[Pair]()
    forms = list(dict.fromkeys(pair.form.name for pair in PAIRS))
    combined = forms[-len(_COMBINATIONS) :]
    for form in [*forms[: -len(_COMBINATIONS)], *combined[::3]]:
        pairs = [pair for pair in PAIRS if pair.form.name == form]
        for _ in pairs[: len(ARCHITECTURES) // 4 if form == "as saved" else 1]:
            pair = min((each for each in pairs if each not in some), key=lambda each: (tried[each.architecture], tried[each.writer]))
            tried.update((pair.architecture, pair.writer))
            some.append(pair)
    return some


_SOME, _MODES = _some(), ("quick", "exact")


def _marked(some: Collection[Pair]) -> pytest.MarkDecorator:
    """Parametrize a test by each pair and its number; pairs outside ``some`` are exhaustive."""
    numbers = {number for number, pair in enumerate(PAIRS) if pair in some}
    return pytest.mark.parametrize(("number", "pair"), few(enumerate(PAIRS), numbers, list(map(str, PAIRS))))


def modes(pair: Pair) -> tuple[str, ...]:
    """Return both modes; for a pair that `make test` runs, each in turn."""
    return (_MODES[_SOME.index(pair) // 2 % 2],) if pair in _SOME else _MODES


# Pairs of which `make test` damages a tensor.
DAMAGED = _SOME[1::4]
every_pair, even_pairs, odd_pairs, damaged_pairs = map(_marked, (_SOME, _SOME[::2], _SOME[1::2], DAMAGED))


def sparsity(base: Path, tuned: Path, mode: str) -> SparsityReport:
    """Run sparsity by the public interface."""
    return compare(base, tuned, mode=mode)


def parents(model: Path, candidate: Path, mode: str) -> ParentsReport:
    """Run parents by the public interface."""
    return asked(str(model), str(candidate), mode=mode)


def whole_name(name: str) -> str:
    """Return a tensor's name without the part in brackets."""
    return re.sub(r"\s*\[.*$", "", name)


def rows_by_name(report: ParentsReport) -> Mapping[str, list[Conversion]]:
    """Group the rows of the conversion by the model's tensor."""
    rows: dict[str, list[Conversion]] = {}
    for row in report.conversion:
        rows.setdefault(whole_name(row.name), []).append(row)
    return rows
