"""Who may import whom: app and mantissa -> components -> analyzers, and the libraries each part may use.

The rules are data (`ANALYZER_PARTS`, `LIBRARIES`, `LIGHT`), `violations` applies them to sources, and the tests show
both that the product keeps them and that a breach of each is found.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Inside analyzers: what each shared part may import of ours. An analyzer may import all of these, and itself.
ANALYZER_PARTS = {
    "core": {"numerics"},
    "numerics": {"core"},
    "checkpoints": {"core", "numerics"},
    "grids": {"core", "checkpoints", "numerics"},
    "language_models": {"core", "checkpoints", "numerics"},
}
# Tools use an analyzer, or act on what one finds. They are not analyzers, and no analyzer imports them but check, which turns the reports
# of others into findings, counts what shrink would save, and asks transformers, in a process of `language_models`, what it would load.
_FOR_TOOLS = {"core", "checkpoints", "numerics"}
RUNNERS = {"scan": _FOR_TOOLS | {"dtype_detection"}, "write": _FOR_TOOLS}
RUNNERS["check"] = _FOR_TOOLS | {"dtype_detection", "grids", "language_models", "comparison", "write"}
# Modules that tie the analyzers together: the list of them, and the command line.
ANALYZER_ENTRIES = {"analyzers", "analyzers.__main__"}
# The command line is an entry point like app.py: for --html and --contribute it reaches up, and only inside functions.
# A report is drawn by the components that the registry names for it.
EXCEPTIONS = {
    ("analyzers.__main__", "components.result.render"),
    ("analyzers.__main__", "components.store"),
    ("analyzers.__main__", "components.contribute"),
    ("analyzers.__main__", "components.pull_request"),
    ("analyzers.core.report", "analyzers"),
    ("analyzers.core.report", "components.result"),
}


COMPUTED = "(computed)"  # stands for the target of an import whose name is no literal
REGISTRY = "analyzers"  # the one module that loads others by names held in data: those of `ANALYZERS`


@dataclass(frozen=True)
class Library:
    """Modules (prefixes) that may import a library when they are loaded, and those that may do so later, in a function."""

    eagerly: tuple[str, ...] = ()
    lazily: tuple[str, ...] = ()


LIBRARIES = {
    "accelerate": Library(lazily=("analyzers",)),
    "gradio": Library(eagerly=("app", "components")),
    "httpx2": Library(eagerly=("analyzers.checkpoints.hub",), lazily=("components.library",)),
    "huggingface_hub": Library(eagerly=("analyzers.checkpoints.hub", "components.library"), lazily=("components.pull_request",)),
    "pandas": Library(eagerly=("components",), lazily=("analyzers",)),
    "pyarrow": Library(lazily=("analyzers.scan", "analyzers.language_models.data_rows", "components.library")),
    "plotly": Library(eagerly=("components",)),
    "spaces": Library(eagerly=("app", "components")),
    "sklearn": Library(),
    "torch": Library(
        eagerly=(
            "analyzers.language_models",
            "analyzers.gradient_conflict",
            "analyzers.precision_variants",
            "analyzers.exit_feedback",
            "mantissa.models_in_memory",
            "mantissa.training",
        ),
        lazily=(
            "analyzers.numerics.torch_kernels",
            "analyzers.numerics.torch_pairs",
            "analyzers.numerics.device",
            "analyzers.numerics.stream_buffer",
            "analyzers.comparison.sparsity.spectral",
        ),
    ),
    "transformers": Library(eagerly=("analyzers.language_models", "mantissa.training.callback")),
}
# Loading one of these must not load any of HEAVY: a cold command line must feel instant.
LIGHT = (
    "analyzers.__main__",
    "analyzers.checkpoints",
    "analyzers.numerics",
    "analyzers.dtype_detection",
    "analyzers.comparison.sparsity",
    "analyzers.comparison.parents",
    "analyzers.comparison.compare",
    "analyzers.scan",
    "components.library",
    "mantissa",
    "mantissa.__main__",
)
HEAVY = ("accelerate", "gradio", "httpx2", "huggingface_hub", "pandas", "plotly", "pyarrow", "scipy", "sklearn", "torch", "transformers")


@dataclass(frozen=True)
class Import:
    """``module`` imports ``target`` at ``line``; lazily when in a function, never at run time when for types only."""

    module: str
    target: str
    line: int
    lazy: bool
    types_only: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def within(name: str, *prefixes: str) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def imports(module: str, source: str, modules: frozenset[str], package: bool) -> Iterator[Import]:
    """Every import of a module's source, in functions too; ``from a import b`` names a.b where that is a module.

    ``importlib.import_module`` and ``__import__`` count like the statement; what they import must be a literal, or be an
    f-string whose literal beginning names the package.
    """

    def visit(node: ast.AST, lazy: bool, types_only: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, node.lineno, lazy, types_only)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: len(module.split(".")) - node.level + package]
                base = ".".join([*parents, *filter(None, [base])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield Import(module, name if name in modules else base, node.lineno, lazy, types_only)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"import_module", "importlib.import_module", "__import__"}:
            called = node.args[0] if node.args else None
            start = called.values[0] if isinstance(called, ast.JoinedStr) else called
            target = start.value if isinstance(start, ast.Constant) and isinstance(start.value, str) else COMPUTED
            yield Import(module, target.rstrip("."), node.lineno, lazy, types_only)
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and ast.unparse(node.test).removeprefix("typing.") == "TYPE_CHECKING":
            branches = [(child, child in node.body or types_only) for child in ast.iter_child_nodes(node)]
        else:
            branches = [(child, types_only) for child in ast.iter_child_nodes(node)]
        for child, for_types in branches:
            yield from visit(child, inside, for_types)

    yield from visit(ast.parse(source), False, False)


def own_breach(found: Import) -> str | None:
    """Why an import of one part of the product by another breaks the layering; None if it does not."""
    module, target = found.module, found.target
    if target == COMPUTED:
        return None if module == REGISTRY else "the name is computed where it cannot be checked"
    if (module, target) in EXCEPTIONS:
        return None if found.lazy else "allowed only inside a function"
    layers = ("analyzers", "components", "app", "mantissa")
    above = [*layers[layers.index(module.split(".")[0]) + 1 :], "tests"]
    if within(target, *above):
        return "imports go from mantissa and app to components to analyzers, never back"
    if not within(target, "analyzers") or not within(module, "analyzers") or module in ANALYZER_ENTRIES:
        return None
    here, there = module.split(".")[1], ".".join(target.split(".")[1:2])
    if there == here:
        return None
    allowed = RUNNERS.get(here) or ANALYZER_PARTS.get(here, set(ANALYZER_PARTS))
    return None if there in allowed else f"analyzers.{here} may import of ours: {', '.join(sorted(allowed)) or 'nothing'}"


def library_breach(found: Import) -> str | None:
    """Why an import of a library breaks the rules of `LIBRARIES`; None if it does not."""
    library = LIBRARIES.get(found.target.split(".")[0])
    if library is None or found.types_only:
        return None
    if within(found.module, *library.eagerly) or (found.lazy and within(found.module, *library.lazily)):
        return None
    later = " (inside a function: also {})".format(", ".join(library.lazily)) if library.lazily else ""
    return f"only these may: {', '.join(library.eagerly) or 'none'}{later}"


def loads(start: str, eager: Mapping[str, list[Import]]) -> Iterator[Import]:
    """The imports of libraries in `HEAVY` that loading module ``start`` runs, through every module of ours that it loads."""
    seen, queue = set[str](), [start]
    while queue:
        module = queue.pop()
        parents = [".".join(module.split(".")[:depth]) for depth in range(1, module.count(".") + 2)]
        for name in parents:
            if name in seen or name not in eager:
                continue
            seen.add(name)
            yield from (found for found in eager[name] if within(found.target, *HEAVY))
            queue.extend(found.target for found in eager[name])


def circles(found: Mapping[str, list[Import]]) -> list[str]:
    """Modules that import each other, also in functions and for types only."""
    graph: dict[str, set[str]] = {}
    for name, group in found.items():
        graph[name] = {each.target for each in group if each.target in found} - {name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [f"{error.args[1][0]}: imports go round in a circle: {' -> '.join(error.args[1])}"]
    return []


def violations(sources: Mapping[str, str], packages: frozenset[str] = frozenset()) -> list[str]:
    """Every breach in the sources (module name -> text), one sentence each; ``packages`` are the names that stand for folders."""
    modules = frozenset(sources)
    found = {name: list(imports(name, text, modules, name in packages)) for name, text in sources.items()}
    breaches = circles(found)
    for each in (each for group in found.values() for each in group):
        breaches += [f"{each}: {reason}" for reason in (own_breach(each), library_breach(each)) if reason]
    eager = {name: [each for each in group if not each.lazy and not each.types_only] for name, group in found.items()}
    for start in LIGHT:
        breaches += [f"loading {start} loads {each.target}, by {each.module}:{each.line}" for each in loads(start, eager)]
    return breaches


def product() -> tuple[dict[str, str], frozenset[str]]:
    """Module name -> source of app.py, mantissa, components and analyzers, and which of the names are packages."""
    sources, packages = {}, set()
    for path in [ROOT / "app.py", *(path for layer in ("mantissa", "components", "analyzers") for path in ROOT.glob(f"{layer}/**/*.py"))]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
            packages.add(".".join(parts))
        sources[".".join(parts)] = path.read_text(encoding="utf-8")
    return sources, frozenset(packages)


def test_the_product_keeps_the_layers() -> None:
    sources, packages = product()
    assert {"app", "mantissa", "components", "analyzers", "analyzers.checkpoints", "analyzers.dtype_detection"} <= set(sources)
    assert violations(sources, packages) == []


def test_the_command_line_loads_nothing_heavy() -> None:
    program = "import json, sys, analyzers.__main__, analyzers.dtype_detection; print(json.dumps(list(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=110, check=True)
    loaded = {name.split(".")[0] for name in json.loads(run.stdout)}
    assert "numba" in loaded and loaded & set(HEAVY) == {"scipy"}  # of SciPy numba loads what it needs itself


@pytest.mark.parametrize(
    ("module", "source", "message"),
    [
        ("analyzers.core.report", "import components.pages", "never back"),
        ("components.forms.links", "import app", "never back"),
        ("components.forms.links", "def f():\n    from tests import hub", "never back"),
        ("analyzers.__main__", "from components.result import render", "allowed only inside a function"),
        ("analyzers.core.command_line", "def f():\n    from components.result import render", "never back"),
        ("analyzers.__main__", "def f():\n    from components import pages", "never back"),
        (
            "analyzers.dtype_detection.lineage",
            "from analyzers.comparison.sparsity import swallowed",
            "analyzers.dtype_detection may import",
        ),
        ("analyzers.dtype_detection.lineage", "from analyzers import update_sparsity", "analyzers.dtype_detection may import"),
        ("analyzers.dtype_detection.lineage", "from ..update_sparsity import swallowed", "analyzers.dtype_detection may import"),
        ("analyzers.dtype_detection.analyze", "from analyzers.scan import worker", "analyzers.dtype_detection may import"),
        ("analyzers.scan.worker", "from analyzers.language_models import samples", "analyzers.scan may import"),
        ("analyzers.scan.worker", "def f():\n    import torch", "only these may"),
        ("analyzers.scan.tables", "import pyarrow", "only these may"),
        ("analyzers.numerics.count_kernels", "from analyzers import grids", "analyzers.numerics may import"),
        ("analyzers.numerics.count_kernels", "from analyzers.checkpoints.tensor import Tensor", "analyzers.numerics may import"),
        (
            "analyzers.checkpoints.reading.sample",
            "def f():\n    from analyzers.language_models import load",
            "analyzers.checkpoints may import",
        ),
        (
            "analyzers.checkpoints.reading.sample",
            "if TYPE_CHECKING:\n    import analyzers.dtype_detection",
            "analyzers.checkpoints may import",
        ),
        ("analyzers.core.limits", "import analyzers.scan", "analyzers.core may import"),
        ("analyzers.checkpoints.local", "import huggingface_hub", "only these may"),
        ("analyzers.checkpoints.hubbub", "def f():\n    import huggingface_hub", "only these may"),
        ("components.dtype.page", "from huggingface_hub import HfApi", "only these may"),
        ("analyzers.dtype_detection.lineage", "import gradio as gr", "only these may"),
        ("analyzers.dtype_detection.answers", "def f():\n    import plotly.express", "only these may"),
        ("analyzers.dtype_detection.answers", "import pandas as pd", "only these may"),
        ("analyzers.dtype_detection.answers", "class T:\n    import pandas", "only these may"),
        ("analyzers.dtype_detection.answers", "try:\n    import pandas\nexcept ImportError:\n    pass", "only these may"),
        ("analyzers.numerics.torch_kernels", "import torch", "only these may"),
        ("analyzers.numerics.histogram", "def f():\n    import torch", "only these may"),
        ("analyzers.dtype_detection", "def f():\n    import transformers", "only these may"),
        ("analyzers.language_models.load", "import accelerate", "only these may"),
        ("app", "import torch", "only these may"),
        ("analyzers.dtype_detection", "import importlib\nimportlib.import_module('transformers')", "only these may"),
        ("analyzers.dtype_detection", "import_module(name)", "computed"),
    ],
)
def test_a_breach_is_found(module: str, source: str, message: str) -> None:
    names = [
        "app",
        "components.result.render",
        "components.pages",
        "analyzers.grids",
        "analyzers.comparison.sparsity",
        "analyzers.scan",
    ]
    others = dict.fromkeys(names, "")
    breaches = violations({**others, module: source})
    assert any(breach.startswith(f"{module}:") and message in breach for breach in breaches), breaches


@pytest.mark.parametrize(
    "second",
    [
        "import analyzers.comparison.parents.analyze",
        "def f():\n    from .analyze import analyze",
        "if TYPE_CHECKING:\n    from .analyze import analyze",
    ],
)
def test_a_circle_is_found(second: str) -> None:
    sources = {
        "analyzers.comparison.parents.analyze": "from .least_squares import fit",
        "analyzers.comparison.parents.least_squares": second,
    }
    (breach,) = violations(sources)
    assert "analyzers.comparison.parents.analyze" in breach and "in a circle" in breach


def test_a_heavy_library_is_found_through_other_modules() -> None:
    sources = {
        "analyzers": "",
        "analyzers.dtype_detection": "from .report import Report",
        "analyzers.dtype_detection.report": "from analyzers.language_models.prompts import text",
        "analyzers.language_models": "import torch",
        "analyzers.language_models.prompts": "",
    }
    breaches = violations(sources, frozenset({"analyzers", "analyzers.dtype_detection", "analyzers.language_models"}))
    assert breaches == ["loading analyzers.dtype_detection loads torch, by analyzers.language_models:1"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("app", "import gradio\nfrom components import pages\nfrom analyzers import limits"),
        ("components.dtype.plots", "import plotly.graph_objects as go\nfrom analyzers.numerics import formats"),
        ("components.library.store", "from huggingface_hub import HfApi"),
        ("analyzers.__main__", "def f():\n    from components.result import render"),
        ("analyzers.__main__", "def f():\n    import analyzers.dtype_detection"),
        ("analyzers.dtype_detection.report", "if TYPE_CHECKING:\n    import pandas\nfrom analyzers.core import errors, limits"),
        ("analyzers.dtype_detection.answers", "def f():\n    import pandas"),
        ("analyzers.dtype_detection.answers", "from .report import Report\nfrom ..core.records import Record"),
        ("analyzers.scan.worker", "from analyzers.dtype_detection import analyze\ndef f():\n    import pyarrow"),
        ("analyzers.numerics.device", "def f():\n    import torch"),
        ("analyzers.checkpoints.hub", "import huggingface_hub"),
        ("analyzers.checkpoints.hub.session", "import huggingface_hub"),
        ("analyzers.numerics.torch_kernels", "def f():\n    import torch"),
        ("analyzers.language_models.load", "import torch, transformers\ndef f():\n    from accelerate import PartialState"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    others = dict.fromkeys(
        [
            "components.result.render",
            "components.pages",
            "analyzers.core.report",
            "analyzers.core.errors",
            "analyzers.core.limits",
        ],
        "",
    )
    assert violations({**others, module: source}) == []
