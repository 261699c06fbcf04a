"""The package: what `pip install .` brings, its extras against the Space's requirements, and the command in a fresh environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import mantissa
from analyzers.core.extras import EXTRAS

from .environments import ROOT, extra, linked, named

SAMPLE = "sample:tiny-bf16-as-fp32"
# The name that is imported, where it is not that of the distribution.
IMPORTED = {"markdown-it-py": "markdown_it", "pillow": "PIL"}


def listed(path: str) -> dict[str, str]:
    """Distribution with its own extras -> range, of a file of requirements."""
    lines = (line.split("#")[0].strip() for line in (ROOT / path).read_text(encoding="utf-8").splitlines())
    return {named(each): str(each.specifier) for each in (Requirement(line) for line in lines if line)}


def test_the_space_installs_what_base_and_app_do() -> None:
    assert extra() | extra("app") == listed("requirements.txt")
    added = {name: range for name, range in extra("all").items() if name not in extra("app")}
    assert added == {"distributed": listed("tests/requirements.txt")["distributed"]}


def test_a_missing_library_is_asked_for_by_the_extra_that_brings_it() -> None:
    base = {IMPORTED.get(name, name) for name in extra()}
    for library, name in EXTRAS.items():
        brought = {IMPORTED.get(each.split("[")[0], each.split("[")[0]) for each in extra(name)}
        assert library in brought - base, library
    brought = {IMPORTED.get(each.split("[")[0], each.split("[")[0]) for each in extra("all")}
    assert brought - base == set(EXTRAS)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that has ``pip install .`` and nothing else; the libraries are links to those of here."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    programs = linked(folder)
    pip = [sys.executable, "-m", "pip", "--python", str(folder), "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", str(ROOT)], check=True, timeout=280)
    return programs


def command(fresh: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_"))}
    return subprocess.run([fresh / "mantissa", *words], cwd=fresh, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.exhaustive
def test_the_base_answers_in_a_fresh_environment(fresh: Path) -> None:
    dtype = command(fresh, "dtype", SAMPLE, "--json")
    assert dtype.returncode == 0 and json.loads(dtype.stdout)["lineage"]["passed_through"] == ["bf16"]
    sparsity = command(fresh, "sparsity", "sample:tiny-bf16", "sample:tiny-tuned", "--json")
    assert sparsity.returncode == 0 and json.loads(sparsity.stdout)["num_changed"] > 0
    check = command(fresh, "check", "sample:tiny-fp32", "--json")
    assert (check.returncode, json.loads(check.stdout)["findings"]) == (0, [])
    assert "transformers is not installed: pip install 'mantissa[models]'." in json.loads(check.stdout)["notes"][0]
    version = command(fresh, "--version")
    assert (version.returncode, version.stdout) == (0, f"mantissa {mantissa.__version__}\n")
