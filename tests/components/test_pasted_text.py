"""What is pasted into a field, an address, a call of the API or a label means the model in it."""

import pytest

from analyzers import ANALYZERS
from analyzers.core.errors import InvalidReference, InvalidRequest
from analyzers.dtype_detection import DtypeRequest
from analyzers.gradient_conflict import ConflictRequest
from components.api.endpoints import _models, _request
from components.dtype import form as passport
from components.forms.form import data, revised, validated
from components.library.item_checks import hub_id, model_id
from components.library_page.browse import query_of
from components.library_page.list_tables import MODELS
from components.parents import form as parents
from components.sparsity import form as sparsity

_ADDRESS = "https://huggingface.co/org/name"


def test_on_the_pages() -> None:
    typed = f'{_ADDRESS}/tree/v1, org/name@v1 from_pretrained("org/b")'
    assert [each.model for each in passport.requests({"model": typed})] == ["org/name@v1", "org/b"]
    assert sparsity.request({"base": f"'{_ADDRESS}/'", "tuned": ["git clone https://hf.co/org/b", "hf download org/c"]}).tuned == (
        "org/b",
        "org/c",
    )
    assert parents.request({"model": _ADDRESS, "candidates": "hf://org/a@v1/x hf.co/org/b"}).candidates == ("org/a@v1", "org/b")
    named = data({"data": "dataset", "dataset": "https://huggingface.co/datasets/org/rows/viewer"})
    assert validated(ConflictRequest, {"model": _ADDRESS}, data=named).data == "org/rows"
    with pytest.raises(InvalidRequest, match="Type or paste one model"):
        parents.request({"model": "from_pretrained('a/b') from_pretrained('c/d')"})


def test_in_an_address_of_the_app() -> None:
    query = passport.filled([("model", f"{_ADDRESS}/tree/main"), ("revision", "v1")])
    assert [each.model for each in passport.requests(query)] == ["org/name@v1"]
    kept = [("model", f"{_ADDRESS}/tree/v2"), ("revision", "v1")]
    assert revised(kept) == kept
    assert passport.permalink(DtypeRequest(model=f"{_ADDRESS}/tree/v2")) == "?model=org%2Fname&revision=v2&mode=quick"


def test_in_calls() -> None:
    assert _request(ANALYZERS["dtype"], {"model": f"{_ADDRESS}?x"}).model == "org/name"
    assert _models([_ADDRESS, "org/name", "`org/b`"]) == ["org/name", "org/b"]


def test_in_the_library() -> None:
    assert model_id(f"{_ADDRESS}/blob/main/README.md") == "org/name"
    with pytest.raises(InvalidRequest, match="leave out the revision"):
        model_id(f"{_ADDRESS}/tree/v1")
    with pytest.raises(InvalidRequest, match="is not a repository"):
        hub_id(_ADDRESS)  # what is stored is an id
    with pytest.raises(InvalidReference, match="address of a dataset"):
        model_id("https://huggingface.co/datasets/org/name")
    rest = ["", "", "", "", "", "", "", False, "", False]
    assert query_of(1, MODELS, f"{_ADDRESS}/tree/v1", *rest)[1].text == "org/name"
    assert query_of(1, MODELS, "two words", *rest)[1].text == "two words"
