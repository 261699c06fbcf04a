"""Which modules load without heavy libraries; who may import whom is declared in pyproject.toml and checked by import-linter."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAVY = {"accelerate", "gradio", "httpx2", "huggingface_hub", "pandas", "plotly", "pyarrow", "sklearn", "torch", "transformers"}
LIGHT = (
    "analyzers.__main__",
    "analyzers.checkpoints",
    "analyzers.numerics",
    "analyzers.dtype",
    "analyzers.comparison.sparsity",
    "analyzers.comparison.parents",
    "analyzers.comparison.compare",
    "analyzers.scan",
    "components.library",
    "components.worker",
    "mantissa",
    "mantissa.__main__",
)


def test_a_command_line_that_must_feel_instant_loads_nothing_heavy() -> None:
    program = f"import json, sys, {', '.join(LIGHT)}; print(json.dumps(list(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=110, check=True)
    assert not {name.split(".")[0] for name in json.loads(run.stdout)} & HEAVY, "python -X importtime -c 'import NAME' says by whom"
