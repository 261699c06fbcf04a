"""What the repository promises about itself: its README, requirements, CI, and that nothing of a machine is in it."""

import ast
import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
APP_REQUIREMENTS = ROOT / "requirements.txt"
TEST_REQUIREMENTS = ROOT / "tests" / "requirements.txt"
README = (ROOT / "README.md").read_text(encoding="utf-8")

# Absolute paths that exist on somebody's machine only.
MACHINE_PATH = re.compile(rb"(?<![\w.~*-])/(work|root|home/\w+|Users/\w+)/|/tmp/[b]ash")


def walked(root: Path) -> list[str]:
    """Files below ``root`` that .gitignore does not name: what git would list, for a copy without its history."""
    lines = (root / ".gitignore").read_text(encoding="utf-8").split()
    ignored = [".git", *(line.strip("/") for line in lines)]
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)]
        here = Path(folder).relative_to(root)
        found += [(here / name).as_posix() for name in files if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)]
    return sorted(found)


def repository_files() -> list[str]:
    """Files of the repository: tracked, or new and not ignored. Paths with forward slashes."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if not (ROOT / ".git").exists():
        return walked(ROOT)
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=True).stdout
    except (OSError, subprocess.CalledProcessError):  # no git here, or one that refuses another user's checkout
        return walked(ROOT)
    return sorted({name for name in listed.split("\0") if name and (ROOT / name).is_file()})


def requirements(path: Path) -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [Requirement(line) for line in lines if line]


def header() -> dict[str, Any]:
    """The YAML header of the README, which configures the Space."""
    assert README.startswith("---\n")
    parsed = yaml.safe_load(README.split("---\n")[1])
    assert isinstance(parsed, dict)
    return parsed


def links(page: Path) -> list[str]:
    """Files of the repository that a Markdown page links to or shows."""
    found = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    return [link for link in found if "://" not in link]


def imported(paths: list[str]) -> set[str]:
    """Top-level names of the third-party packages imported anywhere in these Python files."""
    names: set[str] = set()
    for path in paths:
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.add(node.module.split(".")[0])
    return names - sys.stdlib_module_names - {"analyzers", "components", "app", "benchmarks", "docs", "mantissa", "tests", "tools"}


def test_the_readme_is_short_and_leads_everywhere() -> None:
    assert len(README.splitlines()) <= 120
    pages = {ROOT / "README.md", *(ROOT / "docs").glob("*.md")}
    broken = [(page.name, link) for page in pages for link in links(page) if not (page.parent / link).is_file()]
    assert broken == []
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= set(links(ROOT / "README.md"))


@pytest.mark.parametrize("path", [APP_REQUIREMENTS, TEST_REQUIREMENTS], ids=["app", "tests"])
def test_every_requirement_is_a_bounded_range(path: Path) -> None:
    for requirement in requirements(path):
        operators = {part.operator for part in requirement.specifier}
        assert operators & {"<", "<=", "==", "~="}, f"{requirement} has no upper bound"
        assert operators & {">", ">=", "==", "~="}, f"{requirement} has no lower bound"
        assert requirement.url is None
        assert requirement.marker is None


def test_what_is_imported_is_required() -> None:
    named_otherwise = {
        "pillow": "pil",
        "scikit-learn": "sklearn",
        "pyyaml": "yaml",
        "pytest-xdist": "xdist",
        "markdown-it-py": "markdown-it",
    }
    app = {named_otherwise.get(each.name.lower(), canonicalize_name(each.name)) for each in requirements(APP_REQUIREMENTS)}
    tests = {named_otherwise.get(each.name.lower(), canonicalize_name(each.name)) for each in requirements(TEST_REQUIREMENTS)} | app
    optional = {"distributed"}  # a sentence asks for it where it is needed
    elsewhere = {"bitsandbytes", "compressed-tensors", "mlx"}  # of quantization/make_fixtures.py, run where they are installed
    sources = [name for name in repository_files() if name.endswith(".py")]
    # benchmarks/, tools/ and the docs that it computes need the environment of the tests.
    product = [name for name in sources if not name.startswith(("benchmarks/", "docs/", "tests/", "tools/"))]
    assert {canonicalize_name(name) for name in imported(product)} - app - optional == set()
    assert {canonicalize_name(name) for name in imported(sources)} - tests - elsewhere == set()


def test_the_space_is_configured() -> None:
    space = header()
    gradio = next(each for each in requirements(APP_REQUIREMENTS) if each.name == "gradio")
    assert space["sdk"] == "gradio"
    assert space["sdk_version"] in gradio.specifier
    assert space["python_version"] == "3.12"
    assert (ROOT / space["app_file"]).is_file()
    assert space["license"] == "apache-2.0"
    assert len(space["short_description"]) <= 60  # what the Hub accepts


def test_ci_runs_the_tests_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    commands = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert commands == ["set -eu", 'cd "$(dirname "$0")/.."', "exec make test"]
    assert os.access(script, os.X_OK)


def test_no_path_of_a_machine_is_in_the_repository() -> None:
    found = [name for name in repository_files() if MACHINE_PATH.search((ROOT / name).read_bytes())]
    assert found == []
