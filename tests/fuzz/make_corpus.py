"""Writes the corpus's files from libraries: ``python -m tests.fuzz.make_corpus``. Its other files once broke a parser."""

import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.numpy import save

import mantissa
from tests.checkpoints.pickles.pickled_files import saved
from tests.fuzz.targets import CORPUS

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
_VALUES = np.random.default_rng(0)


def files() -> Iterator[tuple[str, str, bytes]]:
    """Yield target, name and content of each file."""
    norm = _VALUES.standard_normal((2, 4)).astype(np.float32)
    plain: Arrays = {"model.layers.0.mlp.up_proj.weight": norm, "model.norm.weight": np.ones(4, np.float16)}
    yield "safetensors", "plain", save(plain)
    yield "safetensors", "described", save({"a": np.arange(3), "b": np.zeros((2, 0), np.uint8)}, {"format": "pt", "tags": '["a", "b"]'})
    yield "safetensors", "empty", save({})
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    states: dict[str, Any] = {
        "plain": {"a.weight": base, "a.bias": torch.ones(2, dtype=torch.bfloat16)},
        "views": {"a": base.t(), "b": base[:, 1:3], "c": base, "d": base[0].expand(2, 6)},
        "trainer": {"state_dict": {"w": base[:2]}, "epoch": 3, "rate": 0.1, "names": ["a", ("b", None)], "size": base.size()},
        "parameter": torch.nn.Linear(2, 2).state_dict() | {"p": torch.nn.Parameter(torch.ones(2))},
    }
    for name, state in states.items():
        yield "pickle", f"{name}.zip", saved(state)
        yield "pickle", f"{name}.protocol_4", saved(state, protocol=4)
    yield "gguf", "plain", _gguf(32)
    yield "gguf", "aligned", _gguf(8)
    index = {
        "metadata": {"total_size": 32},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }
    yield "index", "plain", json.dumps(index, indent=2).encode()
    yield "index", "bare", b'{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'
    yield "json", "plain", json.dumps([index, 1.5, -0.0, 1 << 70, None, True, '\U0001f917 \\u00e9"', {"": []}]).encode()
    yield "json", "text", '\ufeff{"é\u4e00": "\U0001f917"}'.encode()
    quantized = {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": ["lm_head"], "modules_to_not_convert": None}
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 8, "num_hidden_layers": 1,
        "rope_scaling": {"type": "yarn", "factor": 4.0}, "quantization_config": quantized, "tie_word_embeddings": True,
        "id2label": {"0": "a"}, "text_config": {"dtype": "float32"}, "transformers_weights": "model.safetensors",
    }  # fmt: skip
    yield "config", "plain", json.dumps(config, indent=2).encode()
    yield "config", "limits", b'{"model_type": "mamba2", "time_step_limit": [0.0, Infinity], "dtype": "float32"}'
    yield "config", "adapter", b'{"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"], "base_model_name_or_path": "org/base"}'
    yield "config", "generation", b'{"eos_token_id": [1, 2], "do_sample": true, "temperature": 0.6, "max_length": 10}'
    yield (
        "config",
        "modules",
        b'[{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}, {"idx": 1, "path": "1_Pooling"}]',
    )
    rows = [{"instruction": "Say a.", "input": "", "output": "a"}, {"instruction": "Say \U0001f917.", "output": "b"}]
    chat = {"messages": [{"role": "user", "content": "Say c."}, {"role": "assistant", "content": [{"type": "text", "text": "c"}]}]}
    yield "rows", "lines", "\n".join(map(json.dumps, [*rows, chat])).encode()
    yield "rows", "list", json.dumps([*rows, chat]).encode()
    yield "parquet", "plain", _parquet(rows)
    report = json.loads(mantissa.dtype("sample:tiny-bf16").model_dump_json())
    report["tensors"] = report["tensors"][:1]
    yield "report", "dtype", json.dumps(report).encode()
    yield "call", "call", b'{"data": ["org/model", "quick", 0]}'
    yield "call", "fewer", b'{"data": ["org/model"]}'
    yield "call", "join", b'{"data": ["org/model"], "fn_index": 1, "session_hash": "abc", "event_data": null, "trigger_id": 3}'
    yield "call", "fields", b'{"model": "org/model", "mode": "exact", "seed": 1}'


def _gguf(alignment: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
        writer.add_custom_alignment(alignment)
        writer.add_token_list(["a", "b"])
        writer.add_array("numbers", [[1, 2], [3]])
        writer.add_tensor("blk.0.attn_q.weight", gguf.quants.quantize(np.ones((2, 32), np.float32), gguf.GGMLQuantizationType.Q8_0),
                          raw_dtype=gguf.GGMLQuantizationType.Q8_0)  # fmt: skip
        writer.add_tensor("output_norm.weight", np.ones(4, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def _parquet(rows: list[dict[str, str]]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    packed = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), packed)
    return packed.getvalue()


if __name__ == "__main__":
    for target, name, data in files():
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        (CORPUS / target / name).write_bytes(data)
