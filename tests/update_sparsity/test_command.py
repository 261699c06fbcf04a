"""``python -m analyzers sparsity``: the report, the tables, the text, exit statuses, and what is loaded for them."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from analyzers.__main__ import main
from analyzers.comparison.sparsity import SparsityReport
from analyzers.core import limits
from tests.dtype_detection.checkpoints import normal, write
from tests.update_sparsity.checkpoints import model, pair, updated
from tests.update_sparsity.oracle import load, together
from tests.update_sparsity.test_samples import folder

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


def test_text_from_strangers_is_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = {"\x1b[31mred\n.weight": normal(8, 8), "=1+1": normal(8, 8), "@x": normal(4)}
    one, other = pair(tmp_path, base | {"-gone\x1b": normal(2)}, base | {"+new": normal(2)})
    status, out, err = command(capsys, str(one), str(other), "--csv", str(tmp_path / "out"))
    assert (status, err) == (0, "") and "\x1b" not in out
    for file in (tmp_path / "out").iterdir():
        with file.open(newline="", encoding="utf-8") as opened:
            for cell in (cell for row in csv.reader(opened) for cell in row):
                if cell.startswith(("=", "+", "-", "@", "\t", "\r")):
                    float(cell)


def test_csv_has_every_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPORT_TENSORS", 4)
    base = model(layers=3)
    tuned = updated(base)
    del tuned["lm_head.weight"]
    one, other = pair(tmp_path, base, tuned)
    first = write(tmp_path / "first", updated(base, seed=1))
    status, out, err = command(capsys, str(one), str(first), str(other), "--csv", str(tmp_path / "out"), "--json", "--exact")
    assert (status, err) == (0, "") and len(json.loads(out)["tensors"]) == 4
    tables = {file.stem: pandas.read_csv(file) for file in (tmp_path / "out").glob("*.csv")}
    assert set(tables) == {
        "summary", "roles", "layers", "tensors", "magnitudes", "updates", "ulp", "energy", "unmatched", "trajectory", "overlap",
        "published", "coverage", "left_out",
    }  # fmt: skip
    for name, table in tables.items():
        assert list(table.columns[:2]) == ["base", "tuned"], name
    assert len(tables["tensors"]) == len(tuned) and len(tables["trajectory"]) == 2 and len(tables["overlap"]) == 1
    assert tables["unmatched"].iloc[0]["name"] == "lm_head.weight" and tables["unmatched"].iloc[0]["kind"] == "missing"
    assert tables["ulp"]["count"].sum() == tables["tensors"]["parameters"].sum()
    assert len(pandas.read_parquet(tmp_path / "out" / "tensors.parquet")) == len(tuned)


@pytest.mark.parametrize(
    "options",
    [
        ["--eta", "0"],
        ["--eta", "-1"],
        ["--eta", "1"],
        ["--eta", "nan"],
        ["--eta", "x"],
        ["--eta", "1e-400"],
        ["--exact", "--budget", "1MB"],
        ["--budget", "1"],
        ["--include", "no such name"],
        ["--include", "("],
        ["--subfolder", "none"],
        ["--seed", "-1"],
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


@pytest.mark.parametrize("arguments", [[], ["sample:tiny-bf16"], ["--json"]])
def test_two_sides_are_needed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = command(capsys, *arguments)
    assert (status, out) == (2, "") and err.count("\n") == 1
