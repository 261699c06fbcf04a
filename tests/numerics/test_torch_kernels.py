"""The torch path counts exactly what the compiled path counts, on a GPU if there is one, else on the CPU: its code is the same."""

import pytest
import torch

from analyzers.numerics import Accumulator, torch_kernels
from analyzers.numerics.torch_kernels import checksums, on_device
from tests.numerics.readbacks import readbacks
from tests.numerics.test_histogram import CASES, close, common, counted, drawn, patterns

WHERE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(params=[1000, 1 << 23])
def _at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_kernels, "_AT_ONCE", request.param)


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize(("dtype", "name"), CASES)
def test_same_histogram(dtype: str, name: str) -> None:
    codes = (patterns(dtype) | common(dtype))[name]
    close(counted(on_device(codes, WHERE), dtype), counted(codes, dtype))


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F8_E4M3"])
def test_a_tensor_is_read_back_once(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_kernels, "_AT_ONCE", 100)
    accumulator = Accumulator(dtype)
    with readbacks() as found:
        for seed in range(2):
            accumulator.update(on_device(drawn(dtype, seed, 1000), WHERE))
        taken = accumulator.take()
    assert taken.values == 2000 and found == {"cpu": 1}


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_checksums_tell_changes_apart(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    info = torch.iinfo(kind)
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(info.min, info.max, (3000,), dtype=kind, generator=generator).to(WHERE)
    seen = {checksums(patterns)}
    monkeypatch.setattr(torch_kernels, "_AT_ONCE", 500)
    with readbacks() as found:
        seen.add(checksums(patterns.clone()))
    assert len(seen) == 1 and found == {"cpu": 1}
    changes = [patterns.flip(0), patterns.roll(1), patterns ^ 1, *(patterns.clone() for _ in range(200))]
    for place, each in enumerate(changes[3:]):
        each[7 * place] ^= 1 << place % (8 * kind.itemsize - 1)
    changes[3][[5, 6]] = changes[3][[6, 5]]
    seen.update(map(checksums, changes))
    assert len(seen) == 1 + len(changes)
    for i in range(2):
        assert len({each[8 * i : 8 * i + 8] for each in seen}) == len(seen)
