"""Measures exact mode over HTTP, from the local Hub throttled to 200 MB/s, next to plain downloads of the same bytes."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.hub.process import HubProcess

from .child import Run, Runs, run
from .model_files import LAYERS, make
from .result import Result

RUNS = 3
RATE = 200_000_000  # bytes per second over all connections
SLOWER = 1.15


def exact_over_http(folder: Path) -> Iterator[Result]:
    """Measure the time next to huggingface_hub's download and a plain stream, alternating, and the bytes left on disk."""
    checkpoint = make(folder / "served", LAYERS)
    home, here, there = folder / "home", folder / "here", folder / "there"
    ours, snapshots, streams = [], [], []
    written: set[str] = set()
    with HubProcess("--folder", f"org/served={checkpoint}", "--rate", str(RATE)) as hub:
        for number in range(RUNS + 1):  # the first run of each is discarded
            for path in (home, here):
                path.mkdir()
            done = run(["-m", "analyzers", "dtype", "org/served", "--exact", "--json"], variables=hub.environ(home), folder=here)
            written |= {path.name for place in (home, here) for path in place.rglob("*")}
            for path in (home, here):
                shutil.rmtree(path)
            snapshot = _download(hub, there, "snapshot")
            stream = _download(hub, there, "stream")
            if number:
                ours.append(done)
                snapshots.append(snapshot)
                streams.append(stream)
    shutil.rmtree(checkpoint)
    our, nbytes = Runs(tuple(ours)), ours[0].json["bytes_read"]
    name = f"exact, HTTP, {nbytes / 1e9:.1f} GB at 200 MB/s"
    for plain, text in ((Runs(tuple(snapshots)), name), (Runs(tuple(streams)), "  against a bare stream")):
        ratio = plain.seconds / our.seconds
        yield Result(text, str(our), str(plain), ratio, f">= {1 / SLOWER:.2f}", our.seconds <= SLOWER * plain.seconds)
    yield Result("  left on disk", ", ".join(sorted(written)) or "nothing", f"{nbytes / 1e9:.1f} GB", None, "nothing", not written)
    yield Result("  peak memory", f"{our.peak_bytes / 1e6:.0f} MB")


def _download(hub: HubProcess, there: Path, how: str) -> Run:
    """Run one plain download into ``there``, and remove the folder."""
    there.mkdir()
    done = run(["-m", "tests.benchmarks.naive_download", how, "org/served", str(there)], variables=hub.environ(there / "home"))
    shutil.rmtree(there)
    return done
