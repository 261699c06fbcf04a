"""The endpoint for programs, called as programs do: with gradio's own client over HTTP."""

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from analyzers.dtype_detection import DtypeReport


@pytest.fixture(scope="module")
def client(offline: str) -> Client:
    """A client of an app that cannot reach the Hub."""
    return Client(offline, verbose=False)


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
        ({"model": "sample:tiny-bf16", "budget": "-1"}, "budget"),
        ({"model": "sample:tiny-bf16", "include": "("}, "regular expression"),
    ],
)
def test_bad_arguments_get_one_sentence(client: Client, arguments: dict[str, str], said: str) -> None:
    with pytest.raises(AppError, match=said) as caught:
        client.predict(**arguments, api_name="/inspect")
    assert "Traceback" not in str(caught.value)
