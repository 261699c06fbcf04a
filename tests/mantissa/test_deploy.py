"""docs/deploy.md: its commands are run in a clean folder against a local Hub, as far as that knows what they ask for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from analyzers.language_models.samples import sample_folder
from tests.hub import LocalHub
from tests.hub.server import client_environ

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
LINES = [line.strip() for block in re.findall(r"^ *```sh\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE) for line in block.splitlines()]
# What needs a network, or starts a server. A Space is no repository of the local Hub.
NOT_HERE = re.compile(r"make run|\. \.venv|hf .*\$SPACE|curl ")
TOKEN = "hf_" + "operator" * 4


@pytest.mark.exhaustive
def test_the_commands_fill_a_dataset(hub: LocalHub, tmp_path: Path) -> None:
    files = {path.name: path for path in sample_folder("tiny-bf16").iterdir()}
    for name in ("google-t5/t5-small", "EleutherAI/pythia-70m"):
        hub.add(name, files)
    hub.user(TOKEN, "you", writes=["you/mantissa-library"])
    here = [line.replace("hf_...", TOKEN) for line in LINES if not NOT_HERE.match(line)]
    assert len(here) == 6 and "git archive --prefix=space/ HEAD | tar x" in here
    git = subprocess.run(["git", "rev-parse", "--absolute-git-dir"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "PYTHONPATH": str(ROOT), "GIT_DIR": git, "MANTISSA_DATA": str(tmp_path / "data")}
    environment = os.environ | client_environ(hub.url, tmp_path / "home") | own
    clean = tmp_path / "clean"
    clean.mkdir()
    for _ in range(2):  # to repeat it adds nothing
        script = "\n".join(["set -e", *here])
        ran = subprocess.run(["bash", "-c", script], cwd=clean, env=environment, capture_output=True, text=True, timeout=280)
        assert ran.returncode == 0, ran.stderr[-3000:]
    assert "0 imported, 2 known" in ran.stdout
    assert {"app.py", "README.md", "requirements.txt"} <= {each.name for each in (clean / "space").iterdir()}
