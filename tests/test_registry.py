"""The registry: nothing else names an analyzer, and an entry alone is enough to add one."""

import ast
from pathlib import Path

import pytest

from analyzers import ANALYZERS
from analyzers.core.command_line import Parser, request_of
from analyzers.core.errors import InvalidRequest
from components import fields
from components.result.links import command, query
from tests.toy import ENTRY, ToyRequest
from tests.toy.command import add_options

ROOT = Path(__file__).parents[1]
_SHARED = (
    *("app.py", "analyzers/__main__.py", "analyzers/core/command_line.py"),
    *(f"components/{name}" for name in ("result", "plots", "text")),
    *(f"components/{name}.py" for name in ("api", "fields", "launch", "page", "routes", "run", "security", "worker", "zero_gpu")),
)


def _named(source: str) -> set[str]:
    """The analyzers that a module names: as text, or by importing their packages."""
    words = {name for name in ANALYZERS if name not in ("exit", "precision")}  # which are words of other meanings, too
    packages = {package: each.name for each in ANALYZERS.values() for package in (each.package, f"components.analyses.{each.name}")}
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
    # The badges, and the research questions that share an entry of the navigation.
    assert naming == {
        "components/result/badge.py": {"check", "dtype", "precision"},
        "components/result/render.py": {"dtype"},
        "components/page.py": {"conflict"},
        "components/routes.py": {"check"},
    }
    assert _named("from components.analyses.conflict import layout") == {"conflict"}
    assert _named("import analyzers.exit.report") == {"exit"}


def test_one_field_of_a_request_is_an_option_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """``least`` of the toy analyzer is written in its request and nowhere else; what is served of it is tested in the browser's folder."""
    monkeypatch.setitem(ANALYZERS, "toy", ENTRY)
    parser = Parser(prog="toy")
    add_options(parser)
    assert "--least N" in parser.format_help() and "at least this many elements (default 0)" in " ".join(parser.format_help().split())
    asked = request_of(ToyRequest, parser.parse_args(["org/name", "--least", "5"]))
    assert asked == ToyRequest(model="org/name", least=5)
    assert query(asked) == "?model=org%2Fname&least=5" and command(asked) == "mantissa toy org/name --least=5"
    assert fields.request_of(ToyRequest, fields.filled(ToyRequest, [("model", "org/name"), ("least", "5")])[0]) == asked
    with pytest.raises(InvalidRequest, match='"Least" must be at least 0, not -1'):
        fields.request_of(ToyRequest, {"model": "org/name", "least": "-1"})
