"""``python -m analyzers sparsity``: the report, the tables, the text, exit statuses, and what is loaded for them."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas
import pytest
import torch
from safetensors.torch import save

from analyzers import limits
from analyzers.__main__ import main
from analyzers.update_sparsity import SparsityReport
from tests.dtype_detection.checkpoints import normal, write
from tests.hub import Fault, LocalHub
from tests.update_sparsity.checkpoints import BF16, model, pair, updated
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


def test_text_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = command(capsys, "sample:tiny-bf16", "sample:tiny-step-2", "sample:tiny-tuned")
    assert (status, err) == (0, "")
    for part in (
        "Sparsity 66.3%",
        "33.7% differ",
        "embedding",
        "Lost to bf16 rounding",
        "2^-8",
        "sample:tiny-step-2",
        "Jaccard",
    ):
        assert part in out
    status, out, err = command(capsys, "sample:tiny-bf16", "sample:tiny-bf16-as-fp16", "--budget", "100KB", "--seed", "4", "--eta", "0.01")
    assert (status, err) == (0, "")
    for part in ("95% confidence", "eta 0.01", "not meaningful", "different dtypes", "were read"):
        assert part in out


def test_a_line_for_each_pair_of_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With --tensors, also where the report aggregates; the figures from the definition on the values written."""
    monkeypatch.setattr(limits, "REPORT_TENSORS", 4)
    base = {f"model.layers.{i}.mlp.up_proj.weight": normal(8, 16, seed=i).to(BF16) for i in range(6)}
    tuned = {name: values.clone() for name, values in base.items()}
    for i, values in enumerate(tuned.values()):
        values[:i, 0] *= 2
    one, other = pair(tmp_path, base, tuned)
    status, out, err = command(capsys, str(one), str(other), "--exact", "--tensors")
    assert (status, err) == (0, "")
    table = [re.split(r" {2,}", line) for line in out[out.index("\nName  ") :].strip().splitlines()]
    assert [row[0] for row in table[1:]] == list(base)
    for i, (name, row) in enumerate(zip(base, table[1:], strict=True)):
        update = tuned[name].double() - base[name].double()
        cells = dict(zip(table[0], row, strict=True))
        assert (cells["Dtypes"], cells["Shape"], cells["Changed"], cells["Lost to rounding"]) == ("BF16", "8 x 16", str(i), "0")
        assert float(cells["Largest update"]) == pytest.approx(float(update.abs().max()), rel=5e-3)
        assert float(cells["|update|"]) == pytest.approx(float(update.norm()), rel=5e-3)
        assert float(cells["|update| / |base|"].rstrip("%")) == pytest.approx(
            100 * float(update.norm() / base[name].double().norm()), rel=5e-3
        )
        for title, share in (
            ("Sparsity", 1 - i / 128),
            ("By the probe", 1 - i / 128),
            ("Rows changed", i / 8),
            ("Columns changed", float(i > 0) / 16),
        ):
            assert float(cells[title].rstrip("%")) == pytest.approx(100 * share, rel=5e-3)


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
    assert (status, err) == (0, "") and json.loads(out)["tensors_aggregated"]
    tables = {file.stem: pandas.read_csv(file) for file in (tmp_path / "out").glob("*.csv")}
    assert set(tables) == {
        "summary", "roles", "layers", "tensors", "magnitudes", "updates", "ulp", "energy", "unmatched", "trajectory", "overlap",
        "coverage", "left_out",
    }  # fmt: skip
    for name, table in tables.items():
        assert list(table.columns[:2]) == (["base", "base_commit"] if name == "summary" else ["base", "tuned"])
    assert len(tables["tensors"]) == len(tuned) and len(tables["trajectory"]) == 2 and len(tables["overlap"]) == 1
    assert tables["unmatched"].iloc[0]["name"] == "lm_head.weight" and tables["unmatched"].iloc[0]["kind"] == "missing"
    assert tables["ulp"]["count"].sum() == tables["tensors"]["parameters"].sum()
    assert len(pandas.read_parquet(tmp_path / "out" / "tensors.parquet")) == len(tuned)


def test_tables_of_what_is_empty_have_their_columns(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = command(capsys, "sample:tiny-bf16", "sample:tiny-bf16", "--json")
    tables = SparsityReport.model_validate_json(out).tables()
    for name in ("intervals", "unmatched", "trajectory", "overlap", "spectral", "updates"):
        assert tables[name].empty and len(tables[name].columns)


def test_matrices_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = command(capsys, "sample:tiny-bf16", "sample:tiny-tuned", "--spectral", "--include", r"layers\.0.*attn", "--json")
    assert (status, err) == (0, "")
    report = SparsityReport.model_validate_json(out)
    assert [each.name.split(".")[-2] for each in report.spectral] == ["k_proj", "o_proj", "q_proj", "v_proj"]
    base, tuned = load(folder("tiny-bf16")), load(folder("tiny-tuned"))
    for each in report.spectral:
        before, after = (side[each.name].to(torch.float64) for side in (base, tuned))
        singular = [torch.linalg.svdvals(matrix) for matrix in (before, after, after - before)]
        assert each.nss == pytest.approx(float((singular[1] - singular[0]).norm() / singular[0].norm()), rel=1e-6)
        assert each.stable_rank == pytest.approx(float((singular[2] ** 2).sum() / singular[2].max() ** 2), rel=1e-6)
    status, out, err = command(capsys, "sample:tiny-bf16", "sample:tiny-tuned", "--spectral", "--include", "q_proj.*weight")
    assert status == 0 and "Stable rank" in out


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


def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "model.safetensors").write_bytes(os.urandom(64))
    for arguments, side in (((f"{tmp_path}/bad", "sample:tiny-tuned"), "Base"), (("sample:tiny-bf16", f"{tmp_path}/bad"), "Tuned")):
        status, out, err = command(capsys, *arguments)
        assert (status, out) == (2, "") and err.startswith(f"error: {side}: ")


def test_nothing_to_compare_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write(tmp_path / "other", {"encoder.conv.weight": normal(4, 4).to(BF16)})
    status, out, err = command(capsys, "sample:tiny-bf16", str(other))
    assert (status, out) == (2, "") and "nothing to compare" in err and "encoder.conv.weight" in err


@pytest.mark.parametrize("where", ["/api/models/org/tuned", "/org/tuned/resolve"])
def test_interrupted(where: str, hub: LocalHub) -> None:
    """Ctrl-C while the Hub keeps one side waiting: at the list of files, and at headers."""
    base = model()
    hub.add("org/base", {"model.safetensors": save(base)})
    hub.add("org/tuned", {"model.safetensors": save(updated(base))})
    fault = hub.fault(Fault(where, times=None, delay=200))
    arguments = [sys.executable, "-m", "analyzers", "sparsity", "org/base", "org/tuned", "--exact"]
    patient = os.environ | {"MANTISSA_HUB_TIMEOUT_SECONDS": "200"}
    with subprocess.Popen(arguments, cwd=ROOT, env=patient, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 100
        while not fault.hits and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=150)  # before the Hub answers
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
