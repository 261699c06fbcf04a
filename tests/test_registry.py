"""The registry: nothing else names an analyzer, and an entry alone is enough to add one."""

import ast
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from analyzers import ANALYZERS
from analyzers.command_line import Parser, request_of
from analyzers.errors import InvalidRequest
from components.forms.form import command, permalink
from tests.browser.conftest import NOWHERE, program, serve
from tests.toy import ENTRY, ToyReport, ToyRequest
from tests.toy.command import add_options
from tests.toy.form import filled, request

ROOT = Path(__file__).parents[1]
_SHARED = (
    *("app.py", "analyzers/__main__.py", "analyzers/command_line.py"),
    *(f"components/{name}" for name in ("api", "forms", "appearance", "results", "running", "server", "site", "text")),
)


def _named(source: str) -> set[str]:
    """The analyzers that a module names: as text, or by importing their packages."""
    words = {name for name in ANALYZERS if name not in ("exit", "precision")}  # which are words of other meanings, too
    packages = {
        package: each.name for each in ANALYZERS.values() for package in (each.package, each.components or f"components.{each.name}")
    }
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in words:
            found.add(str(node.value))
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [alias.name for alias in node.names]
            modules = [f"{node.module}.{name}" for name in names] if isinstance(node, ast.ImportFrom) else names
            found |= {name for package, name in packages.items() for module in modules if f"{module}.".startswith(f"{package}.")}
    return found


def test_nothing_but_the_registry_names_an_analyzer() -> None:
    files = [path for name in _SHARED for path in ([ROOT / name] if name.endswith(".py") else sorted((ROOT / name).rglob("*.py")))]
    naming = {str(path.relative_to(ROOT)): found for path in files if (found := _named(path.read_text(encoding="utf-8")))}
    # The facts of passports that lists are filtered by, the reports of scans, the badges, and the page of families.
    assert naming == {
        "components/api/library_endpoints.py": {"dtype"},
        "components/site/embed.py": {"dtype", "check"},
        "components/site/scan_import.py": {"dtype"},
        "components/site/badges.py": {"check", "dtype", "precision"},
        "components/server/routes.py": {"check", "parents"},
    }
    assert _named("from components.conflict import form") == {"conflict"} and _named("import analyzers.exit_feedback.report") == {"exit"}


def test_one_field_of_a_request_is_an_option_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """``least`` of the toy analyzer is written in its request and nowhere else; what is served of it is tested below."""
    monkeypatch.setitem(ANALYZERS, "toy", ENTRY)
    parser = Parser(prog="toy")
    add_options(parser)
    assert "--least N" in parser.format_help() and "at least this many elements (default 0)" in " ".join(parser.format_help().split())
    asked = request_of(ToyRequest, parser.parse_args(["org/name", "--least", "5"]))
    assert asked == ToyRequest(model="org/name", least=5)
    assert permalink(asked) == "?model=org%2Fname&mode=quick&least=5" and command(asked) == "mantissa toy org/name --least=5"
    assert request(filled([("model", "org/name"), ("least", "5")])) == asked
    with pytest.raises(InvalidRequest, match=r"^Least must be at least 0, not -1"):
        request({"model": "org/name", "least": "-1"})


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def test_an_entry_in_the_registry_is_a_page_a_command_an_endpoint_and_a_stored_result(tmp_path: Path) -> None:
    with serve(tmp_path, NOWHERE, ("-m", "tests.toy.program")) as url:
        option = "Count only tensors with at least this many elements"
        assert option in _read(f"{url}/toy") and option in _read(f"{url}/methods/toy")
        described = json.loads(_read(f"{url}/gradio_api/info"))["named_endpoints"]["/toy"]["parameters"]
        assert [each["parameter_default"] for each in described if each["parameter_name"] == "least"] == [0]
        (tool,) = (each for each in json.loads(_read(f"{url}/gradio_api/mcp/schema")) if each["name"] == "toy")
        assert tool["inputSchema"]["properties"]["least"]["description"] == f"{option} (default 0)."
        assert "How many tensors?" in _read(f"{url}/toy") and "Counting tensors" in _read(f"{url}/methods/toy")
        found = ToyReport.model_validate(program(url).predict(model="sample:tiny-bf16", api_name="/toy"))
        assert found.tensors == 38
        assert "38 tensors" in _read(f"{url}/result/{found.id}") and json.loads(_read(f"{url}/result/{found.id}.json"))["tensors"] == 38
    line = [sys.executable, "-m", "tests.toy.program", "toy", "sample:tiny-bf16"]
    assert subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=110, check=True).stdout == "38 tensors\n"
