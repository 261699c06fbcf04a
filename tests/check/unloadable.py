"""Changes a saved model in place, mostly so that transformers refuses it: config.json, names of files, the index, the pickle."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Change = Callable[[Path], bool]
_MAIN = "model.safetensors"
_SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
_HEADS = r"num_attention_heads|n_heads?|num_heads|encoder_attention_heads"
_WIDTH = r"hidden_size|n_embd|d_model|dim"
_LAYERS = r"num_hidden_layers|n_layers?|num_layers|encoder_layers"
_ACTIVATION = r"hidden_act|activation_function|hidden_activation|activation|feed_forward_proj"
# Name -> (keys, value): the first key that config.json has gets the value. A key that ends in "!" is set even if it is missing.
_SETTINGS: dict[str, tuple[str, Any]] = {
    "no-heads": (_HEADS, 0), "odd-heads": (_HEADS, 7), "heads-in-words": (_HEADS, "four"), "heads-null": (_HEADS, None),
    "negative-heads": (_HEADS, -4),
    "width-0": (_WIDTH, 0), "width-in-words": (_WIDTH, "wide"), "width-null": (_WIDTH, None), "width-infinite": (_WIDTH, float("inf")),
    "width-negative": (_WIDTH, -32), "width-fraction": (_WIDTH, 32.5), "width-list": (_WIDTH, [32]),
    "layers-in-words": (_LAYERS, "three"), "layers-null": (_LAYERS, None), "no-layers": (_LAYERS, 0), "more-layers": (_LAYERS, 4),
    "vocabulary-in-words": ("vocab_size", "96"), "vocabulary-huge": ("vocab_size", 10**30), "vocabulary-negative": ("vocab_size", -1),
    "vocabulary-larger": ("vocab_size", 10**7), "no-vocabulary": ("vocab_size", 0),
    "activation": (_ACTIVATION, "zorg"), "activation-null": (_ACTIVATION, None), "patch-0": ("patch_size", 0),
    "rope-type": ("rope_parameters", {"rope_type": "zorg"}), "rope-in-words": ("rope_parameters", "yes"),
    "rope-linear": ("rope_parameters", {"rope_type": "linear"}), "rope-null": ("rope_parameters", None),
    "layer-types": ("layer_types!", ["zorg"] * 3), "norm-eps": (r"\w*norm_eps(ilon)?", "small"), "padding": ("pad_token_id!", 10**6),
    "initializer": (r"initializer_range|init_std|initializer_factor", "small"), "dropout": (r"\w*dropout\w*|\w*_pdrop", "little"),
    "labels": ("id2label!", "x"), "tied-in-words": ("tie_word_embeddings!", "no"), "unknown-key": ("surprise!", {"a": [1, None]}),
    "dtype": ("dtype!", "float99"), "dtype-integer": ("dtype!", "int8"), "dtype-prefixed": ("dtype!", "torch.float16"),
    "dtype-half": ("dtype!", "float16"), "dtype-auto": ("dtype!", "auto"), "dtype-number": ("dtype!", 16), "dtype-null": ("dtype!", None),
    "quantized-in-words": ("quantization_config!", "int8"), "quantized-empty": ("quantization_config!", {}),
    "quantized-unknown": ("quantization_config!", {"quant_method": "zorg"}), "quantized-null": ("quantization_config!", None),
    "quantized-99-bits": ("quantization_config!", {"quant_method": "gptq", "bits": 99}),
    "quantized-list": ("quantization_config!", [4]),
    "no-class": ("architectures!", []), "class-null": ("architectures!", None), "type-unknown": ("model_type", "zorg9"),
    "type-list": ("model_type", ["llama"]), "type-null": ("model_type", None), "type-capitals": ("model_type", "LLAMA"),
}  # fmt: skip


def _setting(keys: str, value: Any) -> Change:
    def change(folder: Path) -> bool:
        config = json.loads((folder / "config.json").read_text())
        key = keys[:-1] if keys.endswith("!") else next((name for name in config if re.fullmatch(keys, name)), None)
        if key is None:
            return False
        (folder / "config.json").write_text(json.dumps(config | {key: value}))
        return True

    return change


def _contents(name: str, edit: Callable[[bytes], bytes]) -> Change:
    def change(folder: Path) -> bool:
        (folder / name).write_bytes(edit((folder / name).read_bytes()))
        return True

    return change


def _renamed(name: str) -> Change:
    def change(folder: Path) -> bool:
        (folder / _MAIN).rename(folder / name)
        return True

    return change


def _class_as_text(folder: Path) -> bool:
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = config["architectures"][0]
    (folder / "config.json").write_text(json.dumps(config))
    return True


def _without_type(folder: Path) -> bool:
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))
    return True


def _without_config(folder: Path) -> bool:
    (folder / "config.json").unlink()
    (folder / "generation_config.json").write_text("{}")
    return True


def _sharded(index: Callable[[dict[str, str]], Any]) -> Change:
    """Save two shards, with the index that ``index`` makes from tensor name -> file."""

    def change(folder: Path) -> bool:
        values = load_file(folder / _MAIN)
        (folder / _MAIN).unlink()
        places = {name: _SHARDS[number % 2] for number, name in enumerate(sorted(values))}
        for file in _SHARDS:
            save_file({name: value for name, value in values.items() if places[name] == file}, folder / file, {"format": "pt"})
        made = index(places)
        if made is not None:
            (folder / f"{_MAIN}.index.json").write_text(json.dumps(made))
        return True

    return change


def _other(file: str) -> str:
    return _SHARDS[1 - _SHARDS.index(file)]


def _saved(wrap: Callable[[dict[str, torch.Tensor]], Any], **options: Any) -> Change:
    def change(folder: Path) -> bool:
        torch.save(wrap(load_file(folder / _MAIN)), folder / "pytorch_model.bin", **options)
        (folder / _MAIN).unlink()
        return True

    return change


CHANGES: dict[str, Change] = {name: _setting(*setting) for name, setting in _SETTINGS.items()} | {
    "not-json": _contents("config.json", lambda text: text[:-9]),
    "a-list": _contents("config.json", lambda text: b"[" + text + b"]"),
    "byte-order-mark": _contents("config.json", lambda text: b"\xef\xbb\xbf" + text),
    "latin-1": _contents("config.json", lambda text: text[:-1] + b', "author": "Ren\xe9"}'),
    "utf-16": _contents("config.json", lambda text: text.decode().encode("utf-16")),
    "empty-file": _contents("config.json", lambda text: b""),
    "infinite-vocabulary": _contents("config.json", lambda text: text[:-1] + b', "vocab_size": 1e400}'),
    "class-as-text": _class_as_text,
    "without-type": _without_type,
    "without-config": _without_config,
    "other-name": _renamed("weights.safetensors"),
    "variant": _renamed("model.fp16.safetensors"),
    "sft": _renamed("model.sft"),
    "shard-alone": _renamed("model-00001-of-00001.safetensors"),
    "right-index": _sharded(lambda places: {"metadata": {}, "weight_map": places}),
    "no-index": _sharded(lambda places: None),
    "no-metadata": _sharded(lambda places: {"weight_map": places}),
    "null-metadata": _sharded(lambda places: {"metadata": None, "weight_map": places}),
    "wrapped": _saved(lambda values: {"state_dict": values, "step": 3}),
    "wrapped-model": _saved(lambda values: {"model": values}),
    "plain-pickle": _saved(dict),
}  # fmt: skip
# Indexes that contradict their files, which transformers loads nevertheless: errors of the rule `index`.
WRONG_INDEXES: dict[str, Change] = {
    "swapped": _sharded(lambda places: {"metadata": {}, "weight_map": {name: _other(file) for name, file in places.items()}}),
    "incomplete": _sharded(lambda places: {"metadata": {}, "weight_map": dict(list(places.items())[:4])}),
    "invented": _sharded(lambda places: {"metadata": {}, "weight_map": places | {"model.zorg": _SHARDS[0]}}),
}


class _Opaque:
    """A class that no library has."""


def _beside(value: Any) -> Change:
    return _saved(lambda values: {**values, "beside": value})


# Pickles; transformers refuses those with an opcode or a name that torch.load does not accept with weights_only, or without names.
PICKLES: dict[str, Change] = {
    "protocol-5": _saved(dict, pickle_protocol=5), "old-layout": _saved(dict, _use_new_zipfile_serialization=False),
    "numpy-scalar": _beside(np.float64(2.5)), "class": _beside(_Opaque()), "set": _beside({1, 2}), "dtype": _beside(torch.bfloat16),
    "sparse": _beside(torch.eye(3).to_sparse()), "integer-key": _saved(lambda values: {**values, 5: torch.ones(2)}),
    "tensors": _saved(lambda values: list(values.values())),
}  # fmt: skip
