"""What other tests take for granted of the local Hub: faults that are scripted, and virtual checkpoints. The rest they try themselves."""

import httpx2
import numpy as np
from huggingface_hub import get_session

from . import Fault, LocalHub
from .generated import checkpoint

WEIGHTS = bytes(range(256)) * 40
PATH = "org/tiny/resolve/main/model.safetensors"


def get(hub: LocalHub, timeout: httpx2.Timeout | float = 30.0, **headers: str) -> httpx2.Response:
    return get_session().get(f"{hub.url}/{PATH}", headers=headers, timeout=timeout)


def test_faults_choose_their_requests(hub: LocalHub) -> None:
    hub.add("org/tiny", {"model.safetensors": WEIGHTS})
    fault = hub.fault(Fault(r"\.safetensors$", times=2, skip=1, status=503, headers={"Retry-After": "7"}))
    assert [get(hub).status_code for _ in range(4)] == [200, 503, 503, 200]
    assert fault.hits == 2 and [request.status for request in hub.requests] == [200, 503, 503, 200]
    hub.fault(Fault("tiny", times=None, method="HEAD", status=500))
    hub.fault(Fault("tiny", times=None, ranged=True, status=503))
    assert get_session().head(f"{hub.url}/{PATH}").status_code == 500
    assert (get(hub, Range="bytes=0-1").status_code, get(hub).status_code) == (503, 200)
    hub.clear_faults()
    assert get(hub, Range="bytes=0-1").status_code == 206


def test_any_range_of_a_virtual_checkpoint_is_a_slice_of_the_whole() -> None:
    files = checkpoint([("a", (7, 3)), ("empty", (0, 4)), ("b", (5,)), ("scalar", ()), ("big", (3000, 3000))], {})
    shard = files["model.safetensors"]
    assert not isinstance(shard, bytes)
    whole = bytes(shard.read(0, shard.size))
    assert len(whole) == shard.size
    generator = np.random.default_rng(0)
    for _ in range(300):
        start = int(generator.integers(0, min(shard.size, 1000)))
        length = int(generator.integers(0, min(shard.size - start, 1000)))
        assert shard.read(start, length) == whole[start : start + length]
    assert shard.read(shard.size - 10, 10) == whole[-10:]
