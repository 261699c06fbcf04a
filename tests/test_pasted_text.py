"""What people paste for a model means the model, as the Hub's own client reads it; nothing else passes for one."""

from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from huggingface_hub import HfFileSystem, RepoUrl
from huggingface_hub.hf_file_system import HfFileSystemResolvedRepositoryPath
from hypothesis import given
from hypothesis import strategies as st

from analyzers.check.report import CheckRequest
from analyzers.checkpoints.reference import Reference, parse_reference
from analyzers.comparison.compare import CompareRequest
from analyzers.comparison.parents.report import ParentsRequest
from analyzers.comparison.sparsity.report import SparsityRequest
from analyzers.conflict.request import ConflictRequest
from analyzers.core.errors import InvalidReference
from analyzers.core.pasted_text import is_address, on_hub, plain, split
from analyzers.dtype import DtypeRequest

_COMMIT = "0123456789abcdef0123456789abcdef01234567"
_SITE = "https://huggingface.co"
_ADDRESSES = {
    "": None,
    "/": None,
    "?library=transformers": None,
    "#model-card": None,
    "/tree/main": None,
    "/tree/v1.0": "v1.0",
    "/tree/main/unet": None,
    "/blob/v1/model.safetensors": "v1",
    "/resolve/v1/model.safetensors?download=true": "v1",
    "/raw/v1/config.json": "v1",
    f"/commit/{_COMMIT}": _COMMIT,
    "/commits/v1": "v1",
    "/tree/refs%2Fpr%2F3": "refs/pr/3",
    "/blob/refs/pr/3/config.json": "refs/pr/3",
    "/tree/refs%2Fconvert%2Fparquet": "refs/convert/parquet",
    "/tree/feature%2Fx": "feature/x",
    "/discussions/3": None,
    ".git": None,
}


def test_an_address_means_the_model_and_its_revision() -> None:
    for path, revision in _ADDRESSES.items():
        assert parse_reference(f"{_SITE}/org/name{path}", local=False) == Reference("hub", "org/name", revision), path
    for host in ("http://huggingface.co", "huggingface.co", "https://hf.co", "hf.co", "HTTPS://HuggingFace.co", "www.hf.co"):
        assert parse_reference(f"{host}/org/name/tree/v1", local=False) == Reference("hub", "org/name", "v1")
        assert parse_reference(f"{host}/gpt2/tree/v1", local=False) == Reference("hub", "gpt2", "v1")
        assert parse_reference(f"{host}/org/tree/tree/main", local=False) == Reference("hub", "org/tree")


@pytest.mark.parametrize("path", ["", "/tree/v1", "/resolve/refs%2Fpr%2F3/a.bin"])
@pytest.mark.parametrize(("kind", "folder"), [("model", ""), ("dataset", "datasets/")])
def test_addresses_name_the_repository_that_the_client_names(path: str, kind: Any, folder: str) -> None:
    theirs = RepoUrl(f"{_SITE}/{folder}org/name{path}")
    ours = parse_reference(f"{_SITE}/{folder}org/name{path}", local=False, kind=kind)
    assert (theirs.repo_type or "model", theirs.repo_id) == (kind, ours.name)


class _Anything(HfFileSystem):
    """The client's file system without a Hub: every repository and revision exists."""

    def _repo_and_revision_exist(self, *_: object) -> tuple[bool, None]:
        return True, None


@pytest.mark.parametrize("path", ["org/name", "org/name@v1/a/b.bin", "org/name@refs/pr/3/a", "org/name@refs%2Fpr%2F3/a", "models/org/name"])
def test_paths_of_the_file_system_mean_what_the_client_reads(path: str) -> None:
    theirs = _Anything().resolve_path(f"hf://{path}")
    assert isinstance(theirs, HfFileSystemResolvedRepositoryPath)
    ours = parse_reference(f"hf://{path}", local=False)
    assert (ours.name, ours.revision or "main") == (theirs.repo_id, theirs.revision)


_MEANS = {
    "'https://huggingface.co/org/name',": "org/name",
    "<https://hf.co/org/name>": "org/name",
    "AutoModel.from_pretrained('org/name', revision=\"abc\")": "org/name@abc",
    "AutoModel.from_pretrained('gpt2')": "gpt2",
    'X.from_pretrained("a/b", quantization_config=Q(bits=4), revision=None)': "a/b",
    'snapshot_download(repo_id="org/name", revision="refs/pr/3")': "org/name@refs/pr/3",
    "hf download org/name model.safetensors --revision v1 --local-dir x": "org/name@v1",
    "huggingface-cli download org/name --revision=v1": "org/name@v1",
    "git clone --depth 1 -b v1 https://huggingface.co/org/name.git": "org/name@v1",
    "git clone git@hf.co:org/name": "org/name",
    "pipeline(task='fill-mask', model='org/name', revision='v1')": "org/name@v1",
    'AutoModel.from_pretrained("sample:tiny-bf16")': "sample:tiny-bf16",
    "vllm serve org/name --revision v1 --dtype bfloat16": "org/name@v1",
    'python3 -m sglang.launch_server --model-path "org/name" --host 0.0.0.0 --port 30000': "org/name",
    "ollama run hf.co/org/name:Q4_K_M": "org/name",
    "llama-server -hf org/name:Q4_K_M": "org/name",
    "[a name](https://huggingface.co/org/name)": "org/name",
    "base_model: org/name": "org/name",
    "sample:tiny-bf16": "sample:tiny-bf16",
    "./runs/`a`": "./runs/`a`",
    'merge("org/a", "org/b")': 'merge("org/a", "org/b")',  # several
}


@pytest.mark.parametrize(("text", "means"), _MEANS.items())
def test_code_and_quotes_mean_the_model_in_them(text: str, means: str) -> None:
    assert plain(text) == means
    assert "merge" in text or parse_reference(text, local=True) == parse_reference(means, local=True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"{_SITE}/datasets/org/name", "This is the address of a dataset: give the id of a model"),
        (f"{_SITE}/spaces/org/name", "This is the address of a Space"),
        (f"{_SITE}/docs/transformers", "not the address of a model"),
        (f"{_SITE}/models?search=x", "not the address of a model"),
        (f"{_SITE}/", "not the address of a model"),
        (f"{_SITE}/org/../name", "not the address of a model"),
        (f"{_SITE}/org/name/tree/main/%2e%2E/x", "not the address of a model"),
        (f"{_SITE}/org/name/tree/v1\x1b[31m", "not the address of a model"),
        (f"{_SITE}/org/name/tree/..%2F..", "not the address of a model"),
        (f"{_SITE}/org%2Fname", "not the address of a model"),
        (f"{_SITE}/hf.co/name", "not the address of a model"),
        (f"{_SITE}/sample:tiny-bf16", "not the address of a model"),
        ("hf://git@hf.co:org/name", "not the address of a model"),
        (f"{_SITE}/org/name/tree/a%00b", "is not a model id"),
        (f"{_SITE}/org/name/tree/a%252Fb", "is not a model id"),
        ("hf://org/name@", "is not a model id"),
        ("https://user:secret@huggingface.co/org/name", "not an address of a model on the Hub"),
        ("https://huggingface.co:443/org/name", "not an address of a model on the Hub"),
        ("https://huggingface.co./org/name", "not an address of a model on the Hub"),
        ("https://huggingface.co.example.com/org/name", "not an address of a model on the Hub"),
        ("https://huggingface.co\\@example.com/org/name", "not an address of a model on the Hub"),
        ("https://hugg\u0456ngface.co/org/name", "not an address of a model on the Hub"),
        ("https://example.com/?x=https://huggingface.co/org/name", "not an address of a model on the Hub"),
        ("https://github.com/org/name", "not an address of a model on the Hub"),
        ("ftp://huggingface.co/org/name", "not an address of a model on the Hub"),
        ("git@github.com:org/name", "not an address of a model on the Hub"),
    ],
)
def test_everything_else_is_refused_without_repeating_a_secret(text: str, sentence: str) -> None:
    with pytest.raises(InvalidReference) as caught:
        parse_reference(text, local=False)
    assert sentence in str(caught.value)
    assert "secret" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_the_configured_endpoint_is_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example.com:8443/hf/")
    for host in ("https://hub.example.com:8443/hf", "hub.example.com:8443/hf", _SITE):
        assert plain(f"{host}/org/name/tree/v1") == "org/name@v1"
    for host in ("https://hub.example.com/hf", "https://hubXexample.com:8443/hf"):
        with pytest.raises(InvalidReference, match="not an address"):
            parse_reference(f"{host}/org/name", local=False)


def test_a_list_of_several_pasted_things() -> None:
    text = f'["org/a", `org/b`] {_SITE}/org/c; from_pretrained("org/d", revision="x"); gpt2\nhf download org/e f.bin\nimport vllm'
    assert split(text) == ["org/a", "org/b", "org/c", "org/d@x", "gpt2", "org/e"]
    assert split("- org/a\n* org/b\n\u2022 [c](https://huggingface.co/org/c)") == ["org/a", "org/b", "org/c"]


def test_a_request_names_the_model_and_not_what_was_pasted() -> None:
    address = f"{_SITE}/org/name/tree/v1"
    assert DtypeRequest(model=address).model == "org/name@v1"
    assert SparsityRequest(base=address, tuned=(address, "'org/b'")).tuned == ("org/name@v1", "org/b")
    assert CompareRequest(models=(address, "'org/b'")).models == ("org/name@v1", "org/b")
    assert CheckRequest(model="org/x", base=address).base == "org/name@v1"
    assert ConflictRequest(model=address, data=f"{_SITE}/datasets/org/data/viewer").data == "org/data"
    with pytest.raises(ValueError, match="is named 2 times"):
        ParentsRequest(model="org/x", candidates=(address, "org/name@v1"))
    with pytest.raises(ValueError, match="is the model itself"):
        ParentsRequest(model="org/x", candidates=(f"{_SITE}/org/x",))


@pytest.mark.parametrize(
    ("address", "folder"),
    [
        (f"{_SITE}/org/name/tree/v1/unet", "unet"),
        (f"{_SITE}/org/name/tree/v1/a/b/", "a/b"),
        (f"{_SITE}/org/name/blob/refs%2Fpr%2F3/unet/model.safetensors?download=true", "unet"),
        (f"AutoModel.from_pretrained('{_SITE}/org/name/tree/v1/unet')", "unet"),
        ("hf://org/name@v1/unet/model.safetensors", "unet"),
        (f"{_SITE}/org/name/tree/v1", None),
        (f"{_SITE}/org/name/blob/v1/model.safetensors", None),
    ],
)
def test_a_folder_in_the_address_is_the_subfolder(address: str, folder: str | None) -> None:
    for text in (address, on_hub(address), *split(address)):
        assert DtypeRequest(model=text).subfolder == folder
        assert DtypeRequest(model=text).model.startswith("org/name")
    assert DtypeRequest(model=address, subfolder="vae").subfolder == "vae"
    assert CompareRequest(models=(address, address.replace("name", "other"))).subfolder == folder
    if folder:
        with pytest.raises(ValueError, match="different folders"):
            CompareRequest(models=(address, "org/other"))


def test_an_address_is_never_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_reference("org/name", local=True).kind == "local"
    assert parse_reference(on_hub(f"{_SITE}/org/name"), local=True) == Reference("hub", "org/name", "main")
    assert on_hub(f"{_SITE}/org/other") == "org/other"
    assert on_hub("org/name") == "org/name"


_WORDS = ["https://", "hf://", "huggingface.co", "hf.co", "org", "tree", "refs%2Fpr%2F1", "datasets", "git clone ", "hf download "]
_SIGNS = ["/", "@", "..", "?", "from_pretrained(", '"', ")", "\u0456", "%2e", ":", " "]


@given(st.lists(st.sampled_from(_WORDS + _SIGNS), max_size=14).map("".join))
def test_reading_twice_changes_nothing(text: str) -> None:
    with suppress(InvalidReference):
        reference = parse_reference(text, local=False)
        once = plain(text)
        assert (plain(once), parse_reference(once, local=False)) == (once, reference)


@pytest.mark.parametrize("part", ["a", "(from_pretrained('a'(", "git clone -b 1 ", "a=b ", "a.", "vllm serve a --b ", "model: ", "[a"])
def test_no_text_takes_exponential_time(part: str) -> None:
    start = process_time()
    split("git clone " + part * (32_000 // len(part)))
    assert process_time() - start < 5


def test_a_long_text_is_no_address_at_once() -> None:
    assert not is_address("<" + "://" * 300_000) and is_address("<https://huggingface.co/org/name>")
