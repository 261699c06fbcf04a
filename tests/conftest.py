"""Fixtures shared by all tests."""

import functools
import gc
import os
import signal
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling

from analyzers.language_models.samples import sample_folder
from tests.hub import Fault, LocalHub
from tests.hub.architectures import llama
from tests.serving import Served, serving

# Tensors in tests are small, so torch's threads would cost more time than they save, above all on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests expect results of the CPU, even on a machine with a GPU. `make test-gpu` runs the tests that need one.
if "MANTISSA_TEST_GPU" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Collecting imports torch, transformers and Gradio, of which nothing becomes garbage: looking for it takes seconds of each process.
gc.disable()

# Each client of HTTP reads the certificates of all authorities, which takes as long as many a test, and needs none of them here.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]

# No deadline, since the time of an example depends on the machine. The suite tries the same few examples each time; make test-all, many.
hypothesis.settings.register_profile("exhaustive", deadline=None, max_examples=300)
hypothesis.settings.register_profile("tests", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("tests")

# A shell that starts this run in the background makes it and its children ignore interrupts, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Let each of several processes begin to collect with another folder: pytest compiles a file in the process that comes to it first."""
    tests = Path(__file__).parent
    worker = getattr(config, "workerinput", None)
    if worker and [Path(each).resolve() for each in config.args] == [tests]:
        parts = sorted(str(path) for path in tests.glob("[a-z]*") if path.is_dir() or path.match("test_*.py"))
        start = int(worker["workerid"][2:]) * len(parts) // worker["workercount"]
        config.args = parts[start:] + parts[:start]


def pytest_collection_finish() -> None:
    """Look for garbage from here on, and not among what was imported."""
    gc.freeze()
    gc.enable()


# The files that share an app and a browser. One process runs them, and first.
_WITH_THE_APP = ("tests/browser/", "tests/components/test_server.py")
# Further files that take longest: at the end, they would keep one process busy while the others are idle.
_LONGEST = tuple(f"tests/{name}/" for name in ("promises", "check", "mantissa", "scan", "pairs", "words", "language_models"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, in the same order in every process."""
    items.sort(key=lambda item: (not item.nodeid.startswith(_WITH_THE_APP), not item.nodeid.startswith(_LONGEST), item.path))


class _Schedule(LoadFileScheduling):  # type: ignore[misc]  # xdist publishes no types
    """A schedule that gives whole files to each process, or those that share an app, or all whose process has loaded transformers."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_WITH_THE_APP):
            return "with the app"
        return "tests/check" if nodeid.startswith("tests/check/") else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Schedule:
    """Choose how tests are distributed over several processes."""
    return _Schedule(config, log)


@pytest.fixture(scope="session", autouse=True)
def _root() -> None:
    """Change to the repository's root, so that programs that tests start find the packages, wherever the run was started."""
    os.chdir(Path(__file__).parents[1])


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start the app, once for all tests that visit it.

    Its Hub has ``org/name``, a sample, and ``org/large`` of 141 GB, whose weights arrive so slowly that no analysis of them ends before a
    test has stopped it.
    """
    with LocalHub(delay=0.02, rate=50e6) as hub:
        hub.add("org/name", {path.name: path for path in sample_folder("tiny-bf16-as-fp32").iterdir()})
        hub.add("org/large", llama(lineage="bf16"))
        hub.fault(Fault("^/org/large/resolve/.*safetensors$", times=None, ranged=True, rate=500_000))
        folder = tmp_path_factory.mktemp("app")
        with serving(folder, hub.url) as (process, url):
            yield Served(process, url, hub, folder)


@contextmanager
def local_hub(patch: pytest.MonkeyPatch, home: Path) -> Iterator[LocalHub]:
    """Start a local Hub, and point huggingface_hub to it in this process and, by the environment, in its children.

    The client reads its settings once, at import, so they are replaced in its modules. home: of the client.
    """
    from huggingface_hub import close_session, constants, hf_api

    patch.delenv("HF_TOKEN", raising=False)
    patch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    with LocalHub() as local:
        for name, value in local.environ(home).items():
            patch.setenv(name, value)
        patch.setattr(constants, "ENDPOINT", local.url)
        patch.setattr(hf_api.api, "endpoint", local.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", local.url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(constants, "HF_HOME", str(home))
        patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        patch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        close_session()  # a client from an earlier test may have dead connections
        yield local
        close_session()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalHub]:
    """Start a `local_hub` for a test."""
    with local_hub(monkeypatch, tmp_path / "hf-home") as local:
        yield local
