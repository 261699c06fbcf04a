"""Shrink: what is written, against the safetensors library and transformers, and everything that must not be written."""

import io
import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from analyzers.__main__ import main
from analyzers.checkpoints import Access, open_checkpoint
from analyzers.core import limits
from analyzers.core.errors import MantissaError
from analyzers.language_models.samples import sample_folder
from analyzers.write import folder as writing
from analyzers.write.plan import plan_shrink
from components.pull_request import shrink_and_open
from tests.check.mutations import saved
from tests.dtype.checkpoints import normal, through, write
from tests.hub import Fault, LocalHub
from tests.waiting import wait_until

BF16, FP16 = torch.bfloat16, torch.float16
Values = dict[str, torch.Tensor]


def shrink(capsys: pytest.CaptureFixture[str], model: str | Path, out: Path, *more: str) -> Any:
    assert main(["shrink", str(model), "--out", str(out), "--json", *more]) == 0
    shown, err = capsys.readouterr()
    assert err == ""
    return json.loads(shown)


def refused(capsys: pytest.CaptureFixture[str], model: str | Path, out: str | Path, *more: str) -> str:
    """The error's sentence; the folder that would hold the result must not have changed."""
    parent = Path(out).parent
    before = sorted(parent.iterdir()) if parent.is_dir() else []
    assert main(["shrink", str(model), "--out", str(out), *more]) == 2
    shown, err = capsys.readouterr()
    assert shown == "" and err.count("\n") == 1 and "Traceback" not in err
    assert (sorted(parent.iterdir()) if parent.is_dir() else []) == before
    return err


def unchanged(capsys: pytest.CaptureFixture[str], model: str | Path, out: str | Path, *more: str) -> str:
    """What is said where there is nothing to shrink, which is no error; nothing is written."""
    assert main(["shrink", str(model), "--out", str(out), *more]) == 0 and not Path(out).exists()
    said = capsys.readouterr().out
    assert main(["shrink", str(model), "--out", str(out), *more, "--json"]) == 0 and not Path(out).exists()
    report = json.loads(capsys.readouterr().out)
    assert report["bytes_before"] == report["bytes_after"] > 0 and report["written"] == [] and report["answer"]["text"] in said
    assert report["answer"]["text"].startswith("Nothing was written: ")
    return said


def tensors_of(folder: Path) -> Values:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def assert_same_values(source: Values, result: Values) -> None:
    """Widened again, the result has every bit of the source."""
    assert source.keys() == result.keys()
    for name, tensor in source.items():
        again = result[name].to(tensor.dtype)
        assert again.shape == tensor.shape
        assert again.contiguous().view(torch.uint8).equal(tensor.contiguous().view(torch.uint8)) if tensor.dim() else again.equal(tensor)


@pytest.mark.parametrize(("name", "dtype"), [("tiny-bf16-as-fp32", BF16), ("tiny-fp16-as-fp32", FP16)])
def test_a_sample_becomes_half_and_gives_the_same_logits(
    name: str, dtype: torch.dtype, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = shrink(capsys, f"sample:{name}", tmp_path / "small")
    source = sample_folder(name)
    assert done["bytes_before"] == 2 * done["bytes_after"]
    assert_same_values(tensors_of(source), tensors_of(tmp_path / "small"))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "small" / file).read_bytes() == (source / file).read_bytes()
    assert sorted(path.name for path in (tmp_path / "small").iterdir()) == sorted(path.name for path in source.iterdir())
    before: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    after: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    assert after.dtype == dtype
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert torch.equal(before(tokens).logits, after(tokens).logits)
    capsys.readouterr()  # the progress bars of transformers
    assert "no tensor is stored as fp32" in unchanged(capsys, tmp_path / "small", tmp_path / "again")


def hostile() -> Values:
    """One tensor of each kind that could be stored wrongly."""
    patterns = torch.arange(1 << 16, dtype=torch.int32) << 16  # every bf16 pattern, NaNs of every payload among them
    deep = through(normal(64, 64), BF16, torch.float32)
    deep[63, 63] = 1 + 2.0**-20
    return {
        "all_bf16.weight": patterns.view(torch.float32),
        "all_fp16.weight": torch.arange(1 << 16, dtype=torch.int32)
        .to(torch.int16)
        .view(FP16)
        .float()
        .nan_to_num(nan=1.0, posinf=torch.inf, neginf=-torch.inf),
        "one_exception.weight": deep,
        "ones.weight": torch.ones(8),
        "minus_zero.weight": torch.full((3, 5), -0.0),
        "nan.weight": torch.full((4,), torch.nan),
        "odd_nan.weight": torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32),
        "double.weight": through(normal(5, 7), BF16, torch.float64),
        "scalar": torch.tensor(0.5),
        "empty.weight": torch.zeros(0, 4),
        "already.weight": normal(8, 8).to(BF16),
        "indices": torch.arange(7, dtype=torch.int64),
        "mask": torch.tensor([True, False, True]),
    }


def test_every_bit_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = hostile()
    done = shrink(capsys, write(tmp_path / "in", source, {"dtype": "float32"}), tmp_path / "out")
    to = {row["name"]: row["to"] for row in done["tensors"]}
    assert to == {
        "all_bf16.weight": "BF16", "all_fp16.weight": "F16", "one_exception.weight": "F32", "ones.weight": "BF16",
        "minus_zero.weight": "BF16", "nan.weight": "BF16", "odd_nan.weight": "F32", "double.weight": "F64",
        "scalar": "BF16", "empty.weight": "F32", "already.weight": "BF16", "indices": "I64", "mask": "BOOL",
    }  # fmt: skip
    result = tensors_of(tmp_path / "out")
    high = result.pop("all_bf16.weight").view(torch.int16)  # torch's own conversion would quiet signalling NaNs
    assert np.array_equal(high.numpy().view(np.uint16), np.arange(1 << 16, dtype=np.uint16))
    source.pop("all_bf16.weight")
    assert_same_values(source, result)
    stated = json.loads((tmp_path / "out" / "config.json").read_text())["dtype"]
    assert stated == done["config_dtype"] == "float32", "never wider than it was"


def test_memory_and_chunks(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the last value of a tensor of many spans, and an exact one beside it."""
    monkeypatch.setattr(limits, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(import_module("analyzers.checkpoints.reading.spans"), "SPAN_BYTES", 20_000)
    source = {"a": through(normal(300, 101), BF16, torch.float32), "b": through(normal(300, 101, seed=1), FP16, torch.float32)}
    late = source["a"].clone()
    late[-1, -1] = 1 + 2.0**-20
    done = shrink(capsys, write(tmp_path / "in", {**source, "late": late}), tmp_path / "out")
    assert [row["to"] for row in done["tensors"]] == ["BF16", "F16", "F32"]
    assert_same_values({**source, "late": late}, tensors_of(tmp_path / "out"))


def test_what_needs_all_of_its_bits_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One chunk of four of each span, at most: more shows nothing."""
    monkeypatch.setattr(limits, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(import_module("analyzers.checkpoints.reading.spans"), "SPAN_BYTES", 20_000)
    native = {f"{number}": normal(300, 101, seed=number) for number in range(3)}
    with open_checkpoint(str(write(tmp_path / "in", native)), Access(local=True)) as checkpoint:
        *_, last = plan_shrink(checkpoint)
        assert 0 < last.done <= checkpoint.nbytes / 2


def test_only_the_named_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = {"a": through(normal(64, 64), BF16, torch.float32), "b": through(normal(64, 64), FP16, torch.float32)}
    write(tmp_path / "in", source, {"torch_dtype": "float32", "text_config": {"dtype": "float32"}, "vision_config": {"dtype": "bfloat16"}})
    for to, expected in (("bf16", ["BF16", "F32"]), ("fp16", ["F32", "F16"]), ("auto", ["BF16", "F16"])):
        done = shrink(capsys, tmp_path / "in", tmp_path / to, "--to", to)
        assert [row["to"] for row in done["tensors"]] == expected and done["config_dtype"] == "float32"
    assert "values that fp16 cannot hold" in unchanged(capsys, write(tmp_path / "a", {"a": source["a"]}), tmp_path / "c", "--to", "fp16")


def test_shards_with_a_wrong_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    save_file({"a": through(normal(8, 8), BF16, torch.float32)}, folder / names[0], {"format": "pt", "by": "somebody"})
    save_file({"b": through(normal(8, 8), BF16, torch.float32)}, folder / names[1], {"format": "pt"})
    wrong = {"metadata": {"total_size": 5, "made": "then"}, "weight_map": {"a": names[1], "b": names[0]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(wrong))
    done = shrink(capsys, folder, tmp_path / "out")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index == {"metadata": {"total_size": 256, "made": "then"}, "weight_map": {"a": names[0], "b": names[1]}}
    assert done["bytes_after"] == 256 and done["notes"][0]["code"] == "index-wrong-files"
    with safe_open(tmp_path / "out" / names[0], "pt") as file:
        assert file.metadata() == {"format": "pt", "by": "somebody"}


def test_names_that_several_files_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Modules in folders of their own, and two files of one folder: each keeps its names."""
    sources: dict[str, Values] = {}
    for number, path in enumerate(("unet/model.safetensors", "vae/a.safetensors", "vae/b.safetensors")):
        sources[path] = {"x.weight": through(normal(8, 8, seed=number), BF16, torch.float32), "vae/b/y": torch.ones(3)}
        (tmp_path / "in" / path).parent.mkdir(parents=True, exist_ok=True)
        save_file(sources[path], tmp_path / "in" / path)
    (tmp_path / "in" / "vae" / "config.json").write_text('{"torch_dtype": "torch.float32"}')
    (tmp_path / "in" / "modules.json").write_text(json.dumps([{"path": part} for part in ("unet", "vae")]))
    shrink(capsys, tmp_path / "in", tmp_path / "out")
    for path, source in sources.items():
        assert_same_values(source, load_file(tmp_path / "out" / path))
        assert {tensor.dtype for tensor in load_file(tmp_path / "out" / path).values()} == {BF16}
    assert json.loads((tmp_path / "out" / "vae" / "config.json").read_text()) == {"torch_dtype": "bfloat16"}


def test_a_tied_head_is_stored_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = through(normal(32, 16), BF16, torch.float32)
    tied = {"model.embed_tokens.weight": matrix, "lm_head.weight": matrix.clone(), "model.layers.0.mlp.up_proj.weight": matrix + 1}
    config = {"model_type": "llama", "tie_word_embeddings": True, "dtype": "float32"}
    done = shrink(capsys, write(tmp_path / "in", tied, config), tmp_path / "out")
    assert [row["name"] for row in done["tensors"] if row["to"] is None] == ["lm_head.weight"]
    assert set(tensors_of(tmp_path / "out")) == tied.keys() - {"lm_head.weight"}
    tied["lm_head.weight"][-1, -1] += 1  # not a copy any more, whatever the configuration says
    done = shrink(capsys, write(tmp_path / "different", tied, config), tmp_path / "out2")
    assert set(tensors_of(tmp_path / "out2")) == tied.keys()
    tied["lm_head.weight"] = matrix.clone()
    shrink(capsys, write(tmp_path / "untied", tied, {**config, "tie_word_embeddings": False}), tmp_path / "out3")
    assert set(tensors_of(tmp_path / "out3")) == tied.keys(), "a model that does not tie them needs both"


def test_pickles_become_safetensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = {"a.weight": through(normal(16, 8), BF16, torch.float32), "b.weight": normal(4, 4)}
    folder = tmp_path / "in"
    folder.mkdir()
    torch.save(source, folder / "pytorch_model.bin")
    (folder / "model.h5").write_bytes(b"other")
    (folder / "sub").mkdir()
    (folder / "sub" / "notes.txt").write_text("kept")
    shrink(capsys, folder, tmp_path / "out")
    assert_same_values(source, tensors_of(tmp_path / "out"))
    files = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert files == ["model.h5", "model.safetensors", "sub/notes.txt"]


def test_what_transformers_keeps_in_fp32_stays_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Although bf16 holds every value; check counts the same bytes."""
    values, config = saved("deepseek-v3", tmp_path)
    values = {name: through(value, BF16, torch.float32) for name, value in values.items()}
    source = write(tmp_path / "in", values, config)
    capsys.readouterr()
    done = shrink(capsys, source, tmp_path / "out")
    kept = {each["name"] for each in done["tensors"] if each["to"] == "F32"}
    assert kept == {name for name in values if name.endswith(("gate.weight", "e_score_correction_bias"))} and done["notes"] == []
    assert main(["check", str(source), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["saving_bytes"] == done["bytes_before"] - done["bytes_after"]


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of huggingface_hub's own upload
def test_a_pull_request_of_the_page(hub: LocalHub) -> None:
    """The files that differ are added, those they replace go, and main is left alone."""
    source: Any = {"a.weight": through(normal(16, 8), BF16, torch.float32)}
    pickle = io.BytesIO()
    torch.save(source, pickle)
    shard = "pytorch_model-00001-of-00001.bin"
    index = json.dumps({"metadata": {}, "weight_map": {"a.weight": shard}}).encode()
    files = {"config.json": b'{"dtype": "float32"}', "README.md": b"about", "tf_model.h5": b"other"}
    files |= {shard: pickle.getvalue(), "pytorch_model.bin.index.json": index}
    sha = hub.add("org/wide", files)
    hub.user("hf_visitor", "visitor")
    arguments = ("org/wide", sha, 16 * 8 * 2, 1 << 20, "hf_visitor")
    for status, said in ((412, "has changed since it was read"), (503, "hf upload org/wide")):
        hub.fault(Fault("commit/main", status=status))
        with pytest.raises(MantissaError, match=said):
            list(shrink_and_open(*arguments))
    *_, (address, _) = shrink_and_open(*arguments)
    assert str(address).startswith(f"{hub.url}/org/wide/discussions/")
    proposed = hub.files("org/wide", revision=f"refs/pr/{str(address).rpartition('/')[2]}")
    added = {"model-00001-of-00001.safetensors", "model.safetensors.index.json"}
    assert proposed.keys() - {".gitattributes"} == {"config.json", "README.md", "tf_model.h5"} | added
    assert hub.files("org/wide") == files, "main is left alone"


# --- what is refused ----------------------------------------------------------------------------------------------


def wide(folder: Path) -> Path:
    return write(folder, {"a.weight": through(normal(64, 64), BF16, torch.float32)}, {"dtype": "float32"})


def test_where_it_may_not_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = wide(tmp_path / "in")
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("there", "file", "link"):
        assert "exists already, and nothing is overwritten" in refused(capsys, source, tmp_path / name)
    assert "is inside the checkpoint" in refused(capsys, source, source / "small")
    (tmp_path / "way").symlink_to(source)
    assert "is inside the checkpoint" in refused(capsys, source, tmp_path / "way" / "small")
    assert "is not a folder" in refused(capsys, source, tmp_path / "missing" / "small")
    assert "is not a folder" in refused(capsys, source, tmp_path / "file" / "small")
    assert "is empty" in refused(capsys, source, "")
    assert "File name too long" in refused(capsys, source, tmp_path / ("x" * 300))


def test_too_little_disk_is_said_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that no disk has room for: sparse, so that it takes none itself."""
    source = wide(tmp_path / "in")
    with (source / "huge.dat").open("wb") as file:
        file.truncate(1 << 43)  # what ext4 allows is 16 TiB
    assert "the disk of" in refused(capsys, source, tmp_path / "out")


def limited(source: Path, out: Path, nbytes: int) -> subprocess.CompletedProcess[str]:
    """Run where no file may grow beyond ``nbytes``, as on a disk that fills up."""
    program = (
        f"import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({nbytes}, {nbytes}));"
        "from analyzers.__main__ import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", program, "shrink", str(source), "--out", str(out)]
    environ = os.environ | {"NUMBA_CACHE_DIR": str(out.parent / "numba")}
    return subprocess.run(command, capture_output=True, text=True, timeout=250, env=environ, check=False)


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path) -> None:
    done = limited(wide(tmp_path / "in"), tmp_path / "out", 4096)
    assert done.returncode == 2 and "File too large. Nothing was kept." in done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"in", "numba"}


def test_killed_in_the_middle(tmp_path: Path, hub: LocalHub) -> None:
    """A signal that can be caught leaves nothing at all; SIGKILL leaves a hidden folder of another name."""
    folder = sample_folder("tiny-bf16-as-fp32")
    hub.add("org/wide", {path.name: path.read_bytes() for path in folder.iterdir()})
    hub.fault(Fault("tokenizer.json", times=None, delay=200))
    for number, status in ((signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
        command = [sys.executable, "-m", "analyzers", "shrink", "org/wide", "--out", str(tmp_path / "out")]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            wait_until(lambda: list(tmp_path.glob(".out.*.part/out/model.safetensors")) != [] or process.poll() is not None)
            process.send_signal(number)
            _, err = process.communicate(timeout=150)
        assert process.returncode == status and not (tmp_path / "out").exists()
        if number != signal.SIGKILL:
            assert err == "terminated\n" and not list(tmp_path.iterdir())
    (left,) = tmp_path.iterdir()
    assert main(["shrink", "sample:tiny-bf16-as-fp32", "--out", str(tmp_path / "other")]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {left.name, "other"}


def test_what_reads_back_differently_is_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that loses one bit, in a tensor that became narrower and in one that did not."""
    source = write(tmp_path / "in", {"a": through(normal(64, 64), BF16, torch.float32), "b": normal(64, 64)})
    real = writing._write_all
    for broken, name in ((2, "a"), (4, "b")):

        def lose_a_bit(descriptor: int, data: memoryview, at: int, broken: int = broken) -> None:
            copy = bytearray(data)
            copy[5] ^= len(data) == broken * 64 * 64
            real(descriptor, memoryview(copy), at)

        monkeypatch.setattr(writing, "_write_all", lose_a_bit)
        assert f'"{name}" reads back differently' in refused(capsys, source, tmp_path / "out")


def test_other_weights_of_the_folder_load_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An adapter beside the model, training state and weights in other files stay: they are not compared with what was stored."""
    source = tmp_path / "in"
    model = AutoModelForCausalLM.from_pretrained(sample_folder("tiny-bf16"), dtype=torch.float32)
    model.save_pretrained(source)
    LoraConfig(r=2, target_modules=["q_proj"], layers_to_transform=[0], task_type="CAUSAL_LM").save_pretrained(str(source))
    update = {
        f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight": normal(*shape)
        for side, shape in (("A", (2, 64)), ("B", (64, 2)))
    }
    save_file(update, source / "adapter_model.safetensors")
    others = ["optimizer.pt", "original/consolidated.00.pth", "checkpoint-5/model.safetensors", "extra.bin", "pytorch_model.bin"]
    for name in others:
        (source / name).parent.mkdir(exist_ok=True)
        (save_file if name.endswith("safetensors") else torch.save)({"a": torch.ones(3)}, source / name)
    capsys.readouterr()
    done = shrink(capsys, source, tmp_path / "out")
    for name in (*others, "adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    (copied,) = [note["values"]["files"] for note in done["notes"] if note["code"] == "copied"]
    assert "pytorch_model.bin" in copied
    before, after = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict() for path in (source, tmp_path / "out"))
    assert any("lora" in name for name in before)
    assert_same_values(before, after)


def test_an_index_of_other_files_stays_and_one_of_replaced_files_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pickled shards beside a single pickle, with other values, and alone."""
    source: Any = {"a.weight": through(normal(16, 8), BF16, torch.float32)}
    main_file, index, shard = "pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin"
    folder, out, alone = (tmp_path / each for each in ("in", "out", "alone"))
    folder.mkdir()
    torch.save(source, folder / main_file)
    torch.save({"a.weight": normal(16, 8, seed=5)}, folder / shard)
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": {"a.weight": shard}}))
    shrink(capsys, folder, out)
    assert all((out / name).read_bytes() == (folder / name).read_bytes() for name in (shard, index))
    assert_same_values(source, load_file(out / "model.safetensors"))
    (folder / main_file).unlink()
    torch.save(source, folder / shard)
    assert shrink(capsys, folder, alone)["replaced"] == [shard, index]
    assert_same_values(source, load_file(alone / "model-00001-of-00001.safetensors"))
    assert sorted(path.name for path in alone.iterdir()) == ["model-00001-of-00001.safetensors", "model.safetensors.index.json"]


def test_nothing_of_a_pickle_is_lost_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no weight is named; tensors that cannot be read, and a file in the place of a new one, are refused."""
    source: Any = {"a.weight": through(normal(16, 8), BF16, torch.float32)}
    folder = tmp_path / "in"
    folder.mkdir()
    torch.save({"state_dict": source, "optimizer": {"s": torch.ones(3)}, "epoch": 4}, folder / "pytorch_model.bin")
    notes = shrink(capsys, folder, tmp_path / "out")["notes"]
    assert [note["code"] for note in notes] == ["nested", "weights-only"]
    torch.save({**source, "b": torch.eye(3).to_sparse()}, folder / "pytorch_model.bin")
    assert '"b" cannot be read, and would be lost' in refused(capsys, folder, tmp_path / "sparse")
    (folder / "pytorch_model.bin").unlink()
    torch.save(source, folder / "pytorch_model-00001-of-00001.bin")
    index = {"metadata": {}, "weight_map": {"a.weight": "pytorch_model-00001-of-00001.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    save_file({"b": torch.ones(3)}, folder / "model-00001-of-00001.safetensors")
    assert "would be replaced, and was not read" in refused(capsys, folder, tmp_path / "taken")


def test_a_tensor_in_two_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    AutoModelForCausalLM.from_pretrained(sample_folder("tiny-bf16"), dtype=torch.float32).save_pretrained(
        tmp_path / "in", max_shard_size="300KB"
    )
    first, *_, last = sorted((tmp_path / "in").glob("*.safetensors"))
    name, tensor = next(iter(load_file(first).items()))
    save_file(load_file(last) | {name: tensor.clone()}, last, {"format": "pt"})
    capsys.readouterr()
    done = shrink(capsys, tmp_path / "in", tmp_path / "out")
    assert [each["name"] for each in done["tensors"] if each["to"] is None] == [f"{first.stem}/{name}"]
    before, after = (AutoModelForCausalLM.from_pretrained(tmp_path / each, dtype=torch.float32).state_dict() for each in ("in", "out"))
    assert_same_values(before, after)
