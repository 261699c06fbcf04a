"""The endpoint for programs, called as programs do: with gradio's own client over HTTP."""

from typing import Any

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from analyzers.dtype_detection import DtypeReport
from analyzers.update_sparsity import SparsityReport


@pytest.fixture(scope="module")
def client(offline: str) -> Client:
    """A client of an app that cannot reach the Hub."""
    return Client(offline, verbose=False)


def _described(client: Client, endpoint: str) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = client.view_api(return_format="dict")["named_endpoints"][endpoint]["parameters"]
    return parameters


def test_inspect_returns_the_report_of_a_sample(client: Client) -> None:
    report = DtypeReport.model_validate(client.predict(model="sample:tiny-bf16-as-fp32", api_name="/inspect"))
    assert report.lineage.verdict == "upcast-from-bf16"
    assert report.checkpoint.ref == "sample:tiny-bf16-as-fp32"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": "/etc/passwd"}, "command line"),
        ({"model": "./README.md"}, "command line"),
        ({"model": "no such model"}, "space"),
        ({"model": None}, "Type or paste a model id"),
        ({}, "Type or paste a model id"),
        ({"model": ["sample:tiny-bf16"]}, "must be a text"),
        ({"model": "sample:tiny-bf16", "budget": "-1"}, "budget"),
        ({"model": "sample:tiny-bf16", "include": "("}, "regular expression"),
    ],
)
def test_bad_arguments_get_one_sentence(client: Client, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(AppError, match=said) as caught:
        client.predict(**arguments, api_name="/inspect")
    assert "Traceback" not in str(caught.value)


def test_the_endpoints_have_typed_names(client: Client) -> None:
    for name, first in (("/inspect", "model"), ("/inspect_many", "models")):
        parameters = {each["parameter_name"]: each["python_type"]["type"] for each in _described(client, name)}
        assert list(parameters) == [first, "mode", "budget", "include", "exclude", "subfolder", "seed"]
        assert parameters["seed"] == "int"
        assert "quick" in parameters["mode"]
        assert "exact" in parameters["mode"]


def test_sparsity_returns_the_report_of_a_pair_and_one_sentence_for_what_is_none(client: Client) -> None:
    found = client.predict(base="sample:tiny-bf16", tuned=["sample:tiny-tuned"], mode="exact", api_name="/sparsity")
    report = SparsityReport.model_validate(found)
    assert report.num_changed + report.num_unchanged == report.total_parameters == 205_376
    parameters = {each["parameter_name"]: each["python_type"]["type"] for each in _described(client, "/sparsity")}
    options = ["mode", "budget", "include", "exclude", "subfolder", "seed", "eta", "spectral"]
    assert list(parameters) == ["base", "tuned", *options]
    assert (parameters["eta"], parameters["spectral"]) == ("float", "bool")
    with pytest.raises(AppError, match="Eta must lie between 0 and 1"):
        client.predict(base="sample:tiny-bf16", tuned=["sample:tiny-tuned"], eta=1.5, api_name="/sparsity")


def test_inspect_many_returns_a_report_or_a_sentence_each(client: Client) -> None:
    found = client.predict(models=["sample:tiny-fp32", "no!such", "sample:tiny-bf16"], include="mlp", api_name="/inspect_many")
    assert DtypeReport.model_validate(found[0]).selected_tensors == 12
    assert found[1]["model"] == "no!such"
    assert "no model id" in found[1]["error"]
    assert found[2]["checkpoint"]["ref"] == "sample:tiny-bf16"
