"""``python -m analyzers sparsity``: the report, the tables, the text, exit statuses, and what is loaded for them."""

import subprocess
import sys
from pathlib import Path

import pytest

from analyzers.__main__ import main
from analyzers.comparison.sparsity import SparsityReport
from tests.sparsity.oracle import load, together
from tests.sparsity.test_samples import folder

ROOT = Path(__file__).parents[2]


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Status, output and errors of the command run in this process."""
    try:
        status = main(["sparsity", *arguments])
    except SystemExit as stop:
        status = int(str(stop.code))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_json_is_one_report_and_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys; sys.argv[1:] = ['sparsity', 'sample:tiny-bf16', 'sample:tiny-step-1', 'sample:tiny-tuned', '--json', '--exact']\n"
        "from analyzers.__main__ import main; status = main()\n"
        "heavy = {'torch', 'transformers', 'pandas', 'accelerate', 'plotly', 'gradio', 'huggingface_hub'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stderr) == (0, "")
    report = SparsityReport.model_validate_json(done.stdout)
    assert report.model_dump_json(indent=2) + "\n" == done.stdout
    oracle = together(load(folder("tiny-bf16")), load(folder("tiny-tuned")))
    assert (report.num_changed, report.total_parameters) == (oracle.changed, oracle.values)
    assert len(report.trajectory) == 2 and report.mode == "exact"


@pytest.mark.parametrize(
    "options",
    [
        ["--eta", "0"],
        ["--eta", "nan"],
        ["--exact", "--budget", "1MB"],
        ["--include", "no such name"],
        ["--subfolder", "none"],
        ["--csv", "/dev/null"],
        ["sample:no-such"],
        ["sample:tiny-tuned"] * 64,
    ],
    ids=lambda options: " ".join(options)[:30],
)
def test_bad_options_end_in_one_line(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = command(capsys, "sample:tiny-bf16", "sample:tiny-tuned", *options)
    assert (status, out) == (2, "")
    assert err.endswith("\n") and err.count("\n") == 1 and err.strip().isprintable() and "Traceback" not in err
