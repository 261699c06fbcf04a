"""What is printed and written about checkpoints whose every name is hostile: nothing in a name hides, or begins a line or a command."""

import json
import re
import unicodedata
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from analyzers.__main__ import TOOLS, main
from analyzers.check import CheckReport, CheckRequest, analyze
from analyzers.check.markdown import markdown
from analyzers.checkpoints import Access
from analyzers.core.terminal import fitted, joined, printable, printable_json
from components.result.files import file_of
from components.result.markdown import markdown as result_markdown
from components.result.render import fragment
from mantissa.commands import COMMANDS
from tests.dtype.checkpoints import normal, write

# Two names in which a line begins, and a plain one. A file's name may hold all of this.
ODD = "\x1b[2K\r\x7f\x9b31m\x85\u2028\u2029\u202e\u2066\u200f\u200b\ufeff\u00ad\u115f\u3164\u034f\ufe0f\U000e0041"
INSIDE = f"x\n::error file=a::owned\nreport forged. Forged at all. ##[error]owned {ODD}z"
AT_START = f"  ::error::owned ##vso[task.complete]{ODD}\n##[group]z"
WORDS = {"plain": "plain words", "inside": INSIDE, "at start": AT_START}


def tensors(word: str, base: bool = False) -> dict[str, torch.Tensor]:
    """Weights that dtype, check and parents have much to say about; base: of the model that they were trained from."""
    step = torch.zeros(128, 64) if base else (torch.rand(128, 64, generator=torch.manual_seed(1)) < 0.05) * 0.01
    names = {
        f"{word}.layers.0.mlp.up_proj.weight": (normal(128, 64) + step).to(torch.bfloat16).float(),
        f"model.{word}.weight": normal(64, 64, seed=1) if base else torch.full((64, 64), float("nan")),
        f"{word} as a norm.weight": normal(64, seed=2, scale=1),
        word: normal(256, 64, seed=3).to(torch.bfloat16),
        f"{word}.whole": torch.arange(64),
    }
    return names | {f"{word} {'of the base' if base else 'of the model'}.weight": normal(8, 8, seed=4)}


def checkpoint(folder: Path, word: str, base: bool = False) -> str:
    """A checkpoint with ``word`` in every place where text of its author stands."""
    config = {"model_type": word, "architectures": [word], "dtype": word, "_name_or_path": word, word: word}
    write(folder, tensors(word, base), config)
    save_file({word: normal(4, 4)}, folder / f"{word}.safetensors", metadata={word: word, "format": word})
    (folder / f"{word}.pkl").write_bytes(b"\x80\x04" + bytes(2_000_000))
    index = {"metadata": {word: word, "total_size": word}, "weight_map": dict.fromkeys(tensors(word, base), "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": word, "tokenizer_class": word}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": word}))
    (folder / "README.md").write_text(f"---\nbase_model: {json.dumps(word)}\n---\n{word}\n")
    return str(folder)


def of_gguf(path: Path, word: str) -> str:
    writer = gguf.GGUFWriter(path, word)
    writer.add_name(word)
    writer.add_string(word, word)
    writer.add_tensor(word, normal(32, 32).numpy())
    writer.add_tensor(f"{word}.2", normal(32, 32).numpy().astype(np.float16))
    for write_part in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write_part()
    return str(path)


def of_adapter(folder: Path, word: str) -> str:
    folder.mkdir()
    names = {f"base_model.model.{word}.lora_{side}.weight": normal(*shape) for side, shape in (("A", (4, 64)), ("B", (128, 4)))}
    save_file(names, folder / "adapter_model.safetensors")
    config = {"base_model_name_or_path": word, "peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": [word]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


def bad_index(folder: Path, word: str) -> str:
    write(folder, {"a": normal(4, 4)})
    index = {"metadata": {}, "weight_map": {word: f"{word}.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(folder)


def checked(model: str) -> CheckReport:
    *_, report = analyze(CheckRequest(model=model), Access(local=True))
    assert isinstance(report, CheckReport)
    return report


Sources = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Paths of the checkpoints of each word, below a folder of that name."""
    found: Sources = {}
    for kind, word in WORDS.items():
        root = tmp_path_factory.mktemp("printed") / word
        root.mkdir()
        torch.save({word: normal(64, 64), f"{word}.2": normal(8)}, root / f"{word}.bin")
        (root / f"{word}.jsonl").write_text("".join(json.dumps({"instruction": word, "output": f"{word} {n}"}) + "\n" for n in range(4)))
        found[kind] = {
            "model": checkpoint(root / f"m {word}", word),
            "base": checkpoint(root / f"b {word}", word, base=True),
            "gguf": of_gguf(root / f"{word}.gguf", word),
            "adapter": of_adapter(root / "adapter", word),
            "pickle": str(root / f"{word}.bin"),
            "rows": str(root / f"{word}.jsonl"),
            "index": bad_index(root / "index", word),
            "word": f"./{word}",
            "bare": word.replace(" ", "_"),
        }
        (root / "list.txt").write_text("".join(f"{start}{' '.join(word.splitlines())}\n" for start in ("", "no such ")), newline="")
        found[kind]["list"] = str(root / "list.txt")
        found[kind]["out"] = str(root / f"out {word}")
    return found


def commands(text: str) -> Iterator[str]:
    """Lines that are commands to a runner: of GitHub Actions after white space is trimmed, or anywhere in a line in the older form, as in
    Azure Pipelines. Whatever some reader takes for the end of a line is one."""
    yield from (line for line in re.split(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", text) if line.strip().startswith("::"))
    yield from re.findall(r"##\w*\[.*", text)


def odd(text: str) -> set[str]:
    """Characters that control, reorder or show nothing: by their category, and the fillers and selectors that Unicode has as letters and
    marks."""
    fillers = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0" + "".join(map(chr, range(0xFE00, 0xFE10)))
    return {c for c in text if c != "\n" and (unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn") or c in fillers)}


def printed(capfd: pytest.CaptureFixture[str], words: list[str]) -> tuple[int, str, str]:
    """Status, output and errors of a command, those of libraries and of processes that it starts included."""
    try:
        status = main(words, tools={**TOOLS, **COMMANDS})
    except SystemExit as stop:
        status = int(str(stop.code))
    out, err = capfd.readouterr()
    return status, out, err


def test_the_oracle_sees_what_is_hostile() -> None:
    assert len(list(commands(INSIDE))) == 2 and len(list(commands(AT_START))) == 3 and not list(commands("a ::b::\n# #[x]"))
    assert odd(ODD) == set(ODD) - set("[2K31m") and not odd("Ж 漢字 😀 é العربية")


@pytest.mark.parametrize(
    "words",
    [
        "dtype {model} --full", "dtype {model} {pickle} {gguf} {word}", "check {model} --base {base} --markdown",
        "sparsity {base} {model} --full", "parents {model} {base}", "parents {model} {base} --full", "shrink {model} --out {out}",
        "scan {list} --out {out}-scan",
        *(
            pytest.param(asked, marks=pytest.mark.exhaustive)
            for asked in (
                "dtype {adapter} --exact", "dtype {index}", "check {model} --base {base}", "check {gguf}", "check {pickle}",
                "exit sample:tiny-bf16 --data {rows} --no-sweep", "precision sample:tiny-bf16 --data {rows}",
                "conflict sample:tiny-bf16 --data {rows}",
            )
        ),
    ],
)  # fmt: skip
def test_no_name_forges_or_hides(words: str, sources: Sources, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In text, Markdown, CSV and HTML; and there are as many lines as if the names were harmless."""
    shape: dict[str, Any] = {}
    for kind, paths in sources.items():
        asked = [word.format(**paths) for word in words.split()]
        files: list[Path] = []
        if not words.startswith(("shrink", "scan")):
            asked += ["--csv", str(tmp_path / kind), "--html", str(tmp_path / f"{kind}.html")]
        status, out, err = printed(capfd, asked)
        files = sorted(tmp_path.rglob(f"{kind}*/*.csv"))
        texts = {"out": out, "err": err} | {file.name: file.read_text() for file in files}
        if (page := tmp_path / f"{kind}.html").exists():
            texts["page"] = re.sub(r"(<script[^>]*>).*?</script>", r"\1", page.read_text(), flags=re.DOTALL)
        for name, text in texts.items():
            assert not odd(text) and not list(commands(text)), (kind, name)
        assert kind == "plain" or "U+202E" in out + err or "sample:" in words
        lines = {name: len(text.split("\n")) for name, text in texts.items() if name != "page"}
        assert shape.setdefault("lines", (status, lines)) == (status, lines), kind


@pytest.mark.parametrize("words", ["dtype {model}", "check {model} --base {base}", "parents {model} {base}"])
def test_json_keeps_every_name_and_shows_it(words: str, sources: Sources, capfd: pytest.CaptureFixture[str]) -> None:
    for kind, paths in sources.items():
        _, out, err = printed(capfd, [*(word.format(**paths) for word in words.split()), "--json"])
        assert not err and not odd(out) and not list(commands(out))
        names = json.dumps(json.loads(out), ensure_ascii=False)
        assert json.dumps(WORDS[kind], ensure_ascii=False)[1:-1] in names


@pytest.mark.parametrize(
    "words",
    [
        "dtype {word}", "dtype {model} --include {word}", "dtype {model} --device {word}", "dtype {model} --x{bare}",
        "dtype {model} --csv {list}/{bare}", "{word}", "scan {word}", "shrink {word} --out {out}", "library import {word}",
        *(
            pytest.param(asked, marks=pytest.mark.exhaustive)
            for asked in ("exit {model}", "precision {model}", "conflict {model}", "exit sample:tiny-bf16 --data {word}")
        ),
    ],
)  # fmt: skip
def test_an_error_is_one_line(words: str, sources: Sources, capfd: pytest.CaptureFixture[str]) -> None:
    for kind, paths in sources.items():
        status, out, err = printed(capfd, [word.format(**paths) for word in words.split()])
        assert (status, out) == (2, "") and err.count("\n") == 1 and err.endswith("\n"), (kind, err)
        assert not odd(err) and not list(commands(err))


def test_the_page_shows_and_writes_no_name_that_forges_or_hides(sources: Sources) -> None:
    """The result above its tabs, its summary and Markdown to copy, and its downloads."""
    for paths in sources.values():
        report = checked(paths["model"])
        text = file_of(report, "json", "").content.decode()
        assert CheckReport.model_validate_json(text) == report
        archive = ZipFile(BytesIO(file_of(report, "zip", "").content))
        written = [text, *(archive.read(name).decode() for name in archive.namelist())]
        texts = [
            fragment(report),
            result_markdown(report, "https://here/"),
            report.summary,
            report.text(),
            joined(markdown(report)),
            *written,
        ]
        assert not any(odd(text) or list(commands(text)) for text in texts)


def test_what_is_legitimate_stays_as_it_is() -> None:
    for text in ("слой.0", "层.权重", "طبقة", "שכבה", "पर", "😀", "é", "a::b", "# a", "##", "[x]", "naïve café"):
        assert printable(text) == text and printable_json(json.dumps(text, ensure_ascii=False)) == json.dumps(text, ensure_ascii=False)


def test_a_line_ends_no_name() -> None:
    wrapped = joined(fitted(printable(f"{'word ' * 20}::error::x {'::b::c ' * 20}"), 40))
    assert wrapped.count("\n") > 5 and not list(commands(wrapped))
    assert joined(["a\nb", "", "::c"]) == "a<U+000A>b\n\n<U+003A>:c"
    document = {f"{ODD}##[x]": [AT_START, INSIDE, {"a": "\U0001f600\\u0041"}]}
    for indent in (None, 2):
        text = printable_json(json.dumps(document, ensure_ascii=False, indent=indent))
        assert json.loads(text) == document and not odd(text) and not list(commands(text)) and "\U0001f600" in text
