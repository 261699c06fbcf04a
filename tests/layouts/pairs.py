"""Defines pairs of checkpoints with the same values in another layout or file format, and runs reports on them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from analyzers.comparison.parents import ParentsReport
from analyzers.comparison.parents.report import Conversion
from analyzers.comparison.sparsity import SparsityReport
from tests.cases import few
from tests.layouts.architectures import ARCHITECTURES, Architecture, State, architecture
from tests.layouts.file_formats import WRITERS, write
from tests.layouts.relayouts import FORMS, Form, chained, provenance
from tests.parents.checkpoints import asked
from tests.sparsity.oracle_comparison import compare

# Forms to apply one after the other, and the file format of the result.
_COMBINATIONS = (
    (("qkv in blocks", "gate and up fused", "data parallel"), "pickle"),
    (("qkv by group", "compiled"), "shards"),
    (("qkv one by one", "body alone"), "pickle"),
    (("rotary rows", "qkv in blocks"), "safetensors"),
    (("Meta", "data parallel"), "pickle"),
    (("qkv by head", "transposed"), "shards"),
    (("copies of the embedding", "wrapped by peft"), "safetensors"),
    (("qkv by group", "experts stacked, gate and up alternating, inputs first", "data parallel"), "shards"),
    (("experts stacked in blocks", "qkv in blocks"), "pickle"),
    (("weight_g and weight_v", "qkv in blocks"), "shards"),
    (("gamma and beta", "qkv in blocks", "data parallel"), "pickle"),
    (("gate and up one by one", "qkv one by one"), "shards"),
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


def _pairs() -> Iterator[Pair]:
    writers = ("safetensors", "shards", "pickle")
    for number, form in enumerate(FORMS.values()):
        for at, name in enumerate(form.architectures):
            yield Pair(name, form, "GGUF" if form.name == "llama.cpp" else writers[(number + at) % len(writers)])
    for names, writer in _COMBINATIONS:
        form = chained(*(FORMS[name] for name in names))
        yield from (Pair(name, form, writer) for name in form.architectures)


PAIRS = tuple(_pairs())
# A pair of each form, of the architectures that were tried least.
SOME: list[Pair] = []
for _form in dict.fromkeys(pair.form.name for pair in PAIRS):
    _tried = Counter(pair.architecture for pair in SOME)
    SOME.append(min((pair for pair in PAIRS if pair.form.name == _form), key=lambda pair: _tried[pair.architecture]))
assert {pair.architecture for pair in SOME} == set(ARCHITECTURES)
# Parametrizes a test by all pairs, all but some of them exhaustive.
every_pair = pytest.mark.parametrize("pair", few(PAIRS, {PAIRS.index(pair) for pair in SOME}, list(map(str, PAIRS))))


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
