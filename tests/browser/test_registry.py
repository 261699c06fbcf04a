"""What is served of the toy analyzer, which the app at ``online`` has in its registry."""

import json
import subprocess
import sys
import urllib.request

from tests.browser.conftest import ROOT, program
from tests.toy import ToyReport


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=120) as answer:
        text: str = answer.read().decode()
        return text


def test_an_entry_in_the_registry_is_a_page_a_command_an_endpoint_and_a_stored_result(online: str) -> None:
    option = "Count only tensors with at least this many elements"
    assert option in _read(f"{online}/toy")
    described = json.loads(_read(f"{online}/gradio_api/info"))["named_endpoints"]["/toy"]["parameters"]
    assert [each["parameter_default"] for each in described if each["parameter_name"] == "least"] == [0]
    (tool,) = (each for each in json.loads(_read(f"{online}/gradio_api/mcp/schema")) if each["name"] == "toy")
    assert tool["inputSchema"]["properties"]["least"]["description"] == f"{option} (default 0)."
    assert "How many tensors?" in _read(f"{online}/toy")
    found = ToyReport.model_validate(program(online).predict(model="sample:tiny-bf16", api_name="/toy"))
    assert found.counted == len(found.tensors) == 38
    assert "38 tensors" in _read(f"{online}/result/{found.id}") and json.loads(_read(f"{online}/result/{found.id}.json"))["counted"] == 38
    line = [sys.executable, "-m", "tests.toy.program", "toy", "sample:tiny-bf16"]
    assert "\n38 tensors.\n" in subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=110, check=True).stdout
