"""The ground truth itself: quantizers give values near those that they got, on the levels of their format; natives are seeded."""

from collections import Counter

import pytest
import torch

from tests.grids.definitions import weights
from tests.grids.formats import FORMATS, STORAGES, Format, dequantized
from tests.grids.natives import DTYPES, KINDS, natives

# Error of rounding Gaussian weights that a format of so many bits may have, relative to their norm
LARGEST_ERROR = {2: 0.82, 3: 0.25, 4: 0.2, 5: 0.07, 6: 0.06, 7: 0.015, 8: 0.06}


# Every fourth in `make test`, the rest with the exhaustive ones
_SOME = [pytest.param(form, id=form.name, marks=[pytest.mark.exhaustive] * (i % 4 > 0)) for i, form in enumerate(FORMATS)]


@pytest.mark.parametrize("form", _SOME)
def test_a_quantizer_rounds_to_few_levels(form: Format) -> None:
    source = weights("gaussian", 128, 512, 0)
    stored = dequantized(form, "fp32", "gaussian", rows=128)
    source = source * 64 if form.name == "torchao nvfp4 single" else source
    assert (stored - source).norm() / source.norm() < LARGEST_ERROR[form.bits]
    groups = stored.reshape(-1, {0: stored.numel(), -1: 512}.get(form.group, form.group))
    assert all(len(group.unique()) <= 2**form.bits for group in groups[:40])


@pytest.mark.parametrize("storage", STORAGES)
def test_storages_differ_by_their_rounding_only(storage: str) -> None:
    for form in FORMATS[::7]:
        stored, whole = dequantized(form, storage, "trained", rows=128), dequantized(form, "fp32", "trained", rows=128)
        assert stored.dtype == STORAGES[storage][1]
        assert (stored.float() - whole).norm() / whole.norm() < 0.1


def test_natives_are_2000_of_every_kind_and_dtype() -> None:
    counts = Counter(kind for kind, _ in natives())
    assert sum(counts.values()) == 2000 and len(counts) == len(KINDS) * len(DTYPES) and min(counts.values()) > 8
    first, again = (torch.stack([t.nan_to_num().float().abs().sum() for _, t in natives(60)]) for _ in range(2))
    assert torch.equal(first, again)
