"""The program ``mantissa``: suggestions for misspelt words, shell completion, and projects with folders of the same names."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words: str, cwd: Path = ROOT, program: tuple[str, ...] = ("-m", "mantissa")) -> subprocess.CompletedProcess[str]:
    """``mantissa WORDS`` in a process of its own, which finds the package by PYTHONPATH."""
    return subprocess.run(
        [sys.executable, *program, *words], cwd=cwd, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, timeout=60
    )


def test_a_misspelt_word_is_named_with_the_one_it_resembles() -> None:
    refused = run("sparsity", "a", "b", "--etta=1")
    assert refused.returncode == 2 and "--eta" in refused.stderr and refused.stderr.count("\n") == 1


def test_bash_completes_commands_and_options() -> None:
    script = run("completion", "bash")
    assert script.returncode == 0
    ask = "COMP_WORDS=({}); COMP_CWORD={}; _shtab_mantissa; echo ${{COMPREPLY[@]}}\n"
    asked = ask.format("mantissa par", 1) + ask.format("mantissa dtype x --ex", 3) + ask.format("mantissa completion f", 2)
    completed = subprocess.run(["/bin/bash", "-c", script.stdout + asked], capture_output=True, text=True, timeout=60)
    assert completed.stdout.split("\n") == ["parents", "--exact --exclude", "fish", ""]


@pytest.mark.exhaustive
def test_a_project_with_a_folder_of_the_same_name_is_told_which(tmp_path: Path) -> None:
    (tmp_path / "analyzers").mkdir()
    (tmp_path / "analyzers" / "__init__.py").touch()
    refused = run(cwd=tmp_path, program=("-c", "import mantissa"))
    last = refused.stderr.strip().rpartition("\n")[2]
    assert last.startswith(
        f"ImportError: {tmp_path / 'analyzers'} would be imported in place of Mantissa's own package analyzers. Rename it, "
    )
    assert run(cwd=tmp_path, program=("-P", "-c", "import mantissa")).returncode == 0
    assert run("dtype", "sample:tiny-bf16", "--json", cwd=tmp_path).returncode == 0
    (tmp_path / "components.py").touch()
    (tmp_path / "analyzers" / "__init__.py").unlink()
    assert f"ImportError: {tmp_path / 'components.py'} would" in run(cwd=tmp_path, program=("-c", "import mantissa")).stderr
    (tmp_path / "components.py").unlink()
    assert run(cwd=tmp_path, program=("-c", "import mantissa")).returncode == 0, "a folder that is no package is not imported"
