"""The command line: what it prints where, exit statuses, files, interruption, and every kind of bad input."""

import fcntl
import io
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pandas
import pytest
import torch
from safetensors.torch import save

from analyzers import ANALYZERS
from analyzers.__main__ import TOOLS, build_parser, main
from analyzers.core import limits
from analyzers.core.terminal import fitted
from analyzers.dtype import DtypeReport
from tests.attacks.repositories import REPOSITORIES
from tests.cases import few
from tests.dtype.checkpoints import normal, write
from tests.hub import Fault, LocalHub
from tests.waiting import wait_until

ROOT = Path(__file__).parents[1]
WEIGHTS = save({"model.layers.0.mlp.up_proj.weight": normal(256, 256).to(torch.bfloat16)})


# Names of tensors, and what stands for each in CSV: different ones for different names.


def run(*arguments: str, limit: float = 110, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-W", "error", "-m", "analyzers", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environ, capture_output=True, text=True, timeout=limit)


def one_line(text: str) -> str:
    """The only line of ``text``, which is fit to be shown."""
    assert text.endswith("\n") and text.count("\n") == 1, text
    assert "Traceback" not in text and text.strip().isprintable() and len(text) < 700, text
    return text.strip()


def strict(text: str) -> Any:
    """JSON without NaN and infinities."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def in_process(capsys: pytest.CaptureFixture[str], *arguments: str, command: Sequence[str] = ("dtype",)) -> tuple[int, str, str]:
    """Status, output and errors of the command run in this process."""
    try:
        status = main([*command, *arguments])
    except SystemExit as stop:
        status = int(str(stop.code))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


# --- answers ------------------------------------------------------------------------------------------------------


def test_json_is_all_there_is_on_standard_output() -> None:
    done = run("dtype", "sample:tiny-bf16-as-fp32", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    strict(done.stdout)
    report = DtypeReport.model_validate_json(done.stdout)
    assert report.lineage.verdict == "upcast-from-bf16" and report.lineage.evidence[0].proven
    assert report.model_dump_json(indent=2) + "\n" == done.stdout


def test_several_models_have_smallest_and_largest_values_and_norms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of each model: the smallest and largest magnitude, zeros counted, and the smallest and largest norm of a tensor."""
    one = write(tmp_path / "one", {"a.weight": torch.tensor([3.0, -4.0]), "b.weight": torch.tensor([0.0, 0.25])})
    two = write(tmp_path / "two", {"a.weight": torch.tensor([-8.0, 6.0])})
    status, out, err = in_process(capsys, str(one), str(two), "--exact")
    assert (status, err) == (0, "")
    title, *rows = (re.split(r" {2,}", line) for line in out.splitlines())
    assert title[-2:] == ["Magnitudes", "Norms"]
    assert [row[-2:] for row in rows] == [["0 to 4", "0.25 to 5"], ["6 to 8", "10 to 10"]]


def test_one_bad_model_among_several(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = in_process(capsys, "sample:tiny-bf16", "sample:no-such", "sample:tiny-fp32", "--json")
    assert status == 2 and "sample:no-such" in one_line(err) and len(strict(out)) == 2


def test_nothing_heavy_is_imported() -> None:
    """Commands on files alone wait for no library of models or pages: each is seconds of somebody's time."""
    asked = (["dtype", "sample:tiny-bf16"], ["sparsity", "sample:tiny-bf16", "sample:tiny-tuned"])
    outputs = ["--json"], ["--html", os.devnull]
    heavy = ["torch", "transformers", "accelerate", "gradio", "pandas"]
    code = (
        "import sys\n"
        "from analyzers.__main__ import main\n"
        f"for output, heavy in zip({outputs!r}, [{[*heavy, 'plotly', 'huggingface_hub']!r}, {heavy!r}]):\n"
        f"    for arguments in {asked!r}:\n"
        "        assert main([*arguments, *output]) == 0\n"
        "        found = sorted(set(heavy) & set(sys.modules))\n"
        "        assert not found, (arguments, output, found)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stderr) == (0, "")


def test_csv_is_readable_and_safe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No text is a formula or ends a line, and different names stay different."""
    names = {
        "\x1b[31mred": "<U+001B>[31mred",
        "<U+001B>[31mred": "<U+003C>U+001B>[31mred",
        "two\nlines": "two<U+000A>lines",
        "=1": "'=1",
        "'=1": "''=1",
        "@SUM(A1)": "'@SUM(A1)",
        "a,\"b'": "a,\"b'",
    }
    folder = write(tmp_path / "model", {name: normal(8) for name in names})
    status, out, err = in_process(capsys, f"{folder}", "sample:tiny-bf16", "--csv", str(tmp_path / "out" / "deep"), "--json")
    assert (status, err, len(strict(out))) == (0, "", 2)
    for file in (tmp_path / "out" / "deep").iterdir():
        table = pandas.read_csv(file, na_filter=False, dtype=str)
        assert len(table) and table.columns[0] == "model"
        for cell in table.to_numpy().ravel():
            if cell.startswith(("=", "+", "-", "@", "\t", "\r")):
                float(cell)  # a number may begin with a sign
        assert file.name != "tensors.csv" or set(names.values()) <= set(table["name"])


@pytest.mark.parametrize("option", ["--csv", "--html"])
def test_unusable_outputs(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    of_one = ["\x1b[31m/no", "/proc/new"] if option == "--html" else ["file", "/proc"]
    for path in ("file/below", "/proc/no/such", "x" * 300, "x" * 5000, *of_one):
        status, out, err = in_process(capsys, "no/such-model", option, path if path[0] in "/\x1b" else str(tmp_path / path))
        assert (status, out) == (2, "") and option in one_line(err)


def test_a_full_disk_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = in_process(capsys, "sample:tiny-bf16", "--html", "/dev/full")
    assert status == 2 and one_line(err).endswith("Cannot write the output: No space left on device.")


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -W error -m analyzers dtype sample:tiny-bf16 --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert (done.stdout, done.stderr) == ("{", "")


@pytest.mark.parametrize("name", [*ANALYZERS, *TOOLS])
def test_help_has_two_examples_that_parse(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    commands = re.findall(rf"^  mantissa {name} (.+)$", capsys.readouterr().out, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert build_parser({name}).parse_args([name, *shlex.split(command)]).command == name


def test_sentences_are_fitted_to_a_terminal() -> None:
    """Sentences are wrapped, in the last column of a row too; what is not a terminal gets whole lines, and so do tables."""
    words = " ".join(["word"] * 30)
    assert fitted(words, 40) == textwrap.wrap(words, 40)
    first, *others = fitted(f"Label  {words}", 60)
    assert first.startswith("Label  word") and others and all(line.startswith(" " * 7 + "word") and len(line) <= 60 for line in others)
    row = "  ".join(["12345"] * 20)
    assert all(fitted(line, 60) == [line] for line in ("short", row, "x" * 99))


def test_a_terminal_gets_lines_of_its_width() -> None:
    """In a real terminal of 60 columns no sentence is longer, and the columns of a table that do not fit follow below."""
    words = "sparsity sample:tiny-bf16 sample:tiny-tuned --full"
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    command = [sys.executable, "-m", "analyzers", *words.split()]
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(command, cwd=ROOT, stdin=follower, stdout=follower, stderr=subprocess.DEVNULL, env=environ) as process:
        os.close(follower)
        shown = b""
        with suppress(OSError):  # the terminal is closed
            while part := os.read(leader, 4096):
                shown += part
    os.close(leader)
    text = shown.decode().replace("\r", "")
    assert process.returncode == 0
    assert len(re.findall(r"^Role ", text, re.MULTILINE)) > 1
    assert all(len(line) <= 60 for line in text.split("\n") if not re.fullmatch("[0-9a-f]{64}", line)), "but the id"


# --- interruption -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "mode"), few([("^/api/models/", "--exact"), ("resolve|/signed/", "--exact"), ("resolve|/signed/", "--budget=20KB")], {0, 2})
)
def test_interrupted(where: str, mode: str, hub: LocalHub) -> None:
    """Ctrl-C while the Hub keeps us waiting: at the list of files, and at headers or weights."""
    hub.add("org/slow", {"model.safetensors": WEIGHTS, "config.json": b"{}"})
    fault = hub.fault(Fault(where, times=None, delay=200))
    command = [sys.executable, "-m", "analyzers", "dtype", "org/slow", mode]
    environ = os.environ | {"MANTISSA_HUB_TIMEOUT_SECONDS": "2"}  # the longest that a read which cannot be interrupted is waited for
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: fault.hits > 0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=150)  # before the Hub answers
    assert (process.returncode, out, one_line(err)) == (130, "", "interrupted")


# --- bad input ----------------------------------------------------------------------------------------------------

REFERENCES = [
    "", " ", "a b/c", "http://evil.example/x", "file:///etc/passwd", "../secret", "..", "org/name/../../x", "etc//passwd", "🤗/model",
    "a" * 10_000, "org/" + "b" * 10_000, "sample:", "sample:nope", "sample:../x", "/no/such/folder", "./nor/this", "org/name@",
    "org/name@a b", "org/name@../x", "-", "a/b/c", "org\\name", "\x1b[31mred", "hf_" + "a" * 34, "datasets/org/name", "/dev/null",
    "/proc/self/mem", "org/name\nsecond line",
]  # fmt: skip


@pytest.mark.parametrize("reference", REFERENCES)
def test_bad_references(
    reference: str, capsys: pytest.CaptureFixture[str], hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ".." is a folder like any other, and refused here because there is no model in it.
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    status, out, err = in_process(capsys, "--", reference)
    assert (status, out) == (2, "")
    said = one_line(err)
    assert said.startswith("error: ") and "a" * 34 not in said.replace("a" * 60, "")
    assert not any("resolve" in request.path for request in hub.requests)


BUDGETS = ["0", "-1", "x", "", "1e9", "64XB", "nan", "9" * 15 + "GB", "9" * 5000, "٣"]
OPTIONS = [
    *(["--budget", text] for text in BUDGETS), *(["--seed", text] for text in ("-1", "x", "9" * 30, "9" * 5000)),
    *(["--include", text] for text in ("(", "nothing matches this", "a" * 5000, "\x1b[31m(")), ["--exclude", "."], ["--budget=-5MB"],
    *(["--device", text] for text in ("tpu", "\x1b[31m")), *(["--subfolder", text] for text in ("none", "../x")), ["--no-such-option"],
    ["--exact", "--budget", "5MB"], ["--no\nsuch"],
]  # fmt: skip
COMMANDS = [[], ["dtype"], ["sparse"], ["dtype", "--json"], *(["dtype", "sample:tiny-bf16", *options] for options in OPTIONS)]


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_commands(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = in_process(capsys, command=command)
    assert (status, out) == (2, "")
    one_line(err)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(?:a|aa)+$"])
def test_endless_filters(pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzers.checkpoints.tensor_names.filters.FILTER_SECONDS", 0.5)
    folder = write(tmp_path, {"a" * 3000 + "!": normal(8, 8)})
    status, out, err = in_process(capsys, f"{folder}", "--include", pattern)
    assert (status, out) == (2, "") and "takes more than" in one_line(err)


@pytest.mark.parametrize("attack", REPOSITORIES, ids=lambda attack: attack.name)
def test_hostile_repositories(attack: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, data in attack.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    status, out, err = in_process(capsys, f"{tmp_path}", "--exact")
    assert (status, out) == (2, "")
    one_line(err)


# --- the Hub misbehaves -------------------------------------------------------------------------------------------

API, FILE = "^/api/models/", "model.safetensors|/signed/"
FAULTS = {
    "api 401": Fault(API, times=None, status=401, headers={"X-Error-Code": "RepoNotFound"}),
    "api 404": Fault(API, times=None, status=404, headers={"X-Error-Code": "RepoNotFound"}),
    "api 429": Fault(API, times=None, status=429, headers={"Retry-After": "600"}),
    "api 500": Fault(API, times=None, status=500),
    "api hangs": Fault(API, times=None, hang=True),
    "api garbage": Fault(API, times=None, garbage=b"\x00\xff\x1b[31m garbage"),
    "api no json": Fault(API, times=None, body=b"<html>Traceback</html>"),
    "file 401": Fault(FILE, times=None, status=401),
    "file 404": Fault(FILE, times=None, status=404),
    "file 416": Fault(FILE, times=None, status=416),
    "file 429": Fault(FILE, times=None, status=429, headers={"Retry-After": "600"}),
    "file 500": Fault(FILE, times=None, status=500),
    "file hangs": Fault(FILE, times=None, hang=True),
    "file nothing": Fault(FILE, times=None, garbage=b""),
    "file garbage": Fault(FILE, times=None, garbage=b"\x00\xff garbage\n"),
    "file whole": Fault(FILE, times=None, ignore_range=True, method="GET"),
    "weights cut": Fault(FILE, times=None, cut_after=10, method="GET", skip=1),
}


def test_each_fault_is_one_sentence_in_time(hub: LocalHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each against a repository of its own."""
    monkeypatch.setattr(limits, "HUB_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(limits, "HUB_WAIT_SECONDS", 0.5)
    repositories: dict[str, str] = {}
    for number, (name, fault) in enumerate(FAULTS.items()):
        repo = f"org/fault-{number}"
        hub.add(repo, {"model.safetensors": WEIGHTS + b"", "config.json": b"{}"})
        mine = API + repo if fault.pattern == API else f"{repo}/resolve/.*model.safetensors"
        hub.fault(replace(fault, pattern=mine))
        repositories[repo] = name
    status, out, err = in_process(capsys, *repositories, "--exact", "--json")
    lines = err.splitlines(keepends=True)
    assert (status, out) == (2, "") and len(lines) == len(repositories), err
    for repo, line in zip(repositories, lines, strict=True):
        assert one_line(line).startswith(f"error: {repo}: "), (repositories[repo], line)


def test_from_the_hub(hub: LocalHub, capsys: pytest.CaptureFixture[str]) -> None:
    sha = hub.add("org/fine", {"model.safetensors": WEIGHTS, "config.json": b"{}"})
    status, out, err = in_process(capsys, "org/fine", "--json")
    report = strict(out)
    assert (status, err) == (0, "") and (report["checkpoint"]["ref"], report["checkpoint"]["commit"]) == ("org/fine", sha)
    hub.add("org/secret", {"model.safetensors": WEIGHTS}, private=True)
    hub.add("org/gated", {"model.safetensors": WEIGHTS}, gated="auto")
    hub.add("org/empty", {"README.md": b"hello"})
    for repo in ("org/secret", "org/gated", "org/empty", "org/none", "org/fine@nobranch"):
        status, out, err = in_process(capsys, repo)
        assert (status, out) == (2, "")
        one_line(err)


def test_bytes_that_are_no_text_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("--include=a|\udcff", "./a\udcff"):
        status, out, err = in_process(capsys, word, "--json")
        assert (status, out) == (2, "") and "contains bytes that are not UTF-8" in one_line(err)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_standard_output_of_few_characters(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(write(tmp_path / "w中", {"w中": normal(8, 8)}))
    shown = []
    for options in (["--json"], []):
        written = io.BytesIO()
        with monkeypatch.context() as patch, io.TextIOWrapper(written, encoding) as output:
            patch.setattr(sys, "stdout", output)
            assert main(["dtype", folder, *options]) == 0
            shown.append(written.getvalue().decode(encoding))
    assert DtypeReport.model_validate_json(shown[0]).tensors[0].name == "w中"
    assert ("中" if encoding == "utf-8" else "\\u4e2d") in shown[1]
