"""The rules `keep-fp32`, `load-dtype` and `companions`: what a loader makes of dtypes, and of the files and rows around the weights."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from analyzers.check.engine_facts import EngineFacts, Floats
from analyzers.check.report import Finding
from analyzers.check.words import finding
from analyzers.checkpoints import DTYPE_BITS, Tensor
from analyzers.checkpoints.stated_dtype import TORCH_NAMES, plain_dtype
from analyzers.core.notes import Value
from analyzers.core.terminal import printable

_FLOATS = ("F32", "F16", "BF16")

# --- keep-fp32 -----------------------------------------------------------------------------------------------------

_SAMPLE = 4_096  # values of a tensor that are counted
_KEPT = 100_000  # bytes of them together, per side
_FEW = 8  # a tensor has collapsed if it has an eighth as many values as elements, for bf16 gives weights of one magnitude many more


def keep_fp32(facts: EngineFacts) -> Iterator[Finding]:
    """Find tensors that transformers keeps in fp32 and that are stored narrower, and so lost values.

    Vectors count, as biases of routers: matrices are stored in the dtype that they were trained in, unless the base has them in fp32 or
    few of their values are left.
    """
    if facts.loading is None:
        return
    kept = set(facts.loading.fp32)
    half = set(facts.loading.fp32_in_fp16)
    narrow = [
        tensor
        for name, tensor in facts.tensors.items()
        if (name in kept and tensor.dtype in ("F16", "BF16")) or (name in half and tensor.dtype == "F16")
    ]
    base = facts.base.tensors if facts.base is not None else {}
    wider = [base[t.name] for t in narrow if t.name in base and base[t.name].dtype == "F32" and base[t.name].shape == t.shape]
    after = facts.values.samples(facts.checkpoint, narrow, _KEPT)
    before = facts.values.samples(facts.base.checkpoint, wider, _KEPT) if facts.base is not None else {}
    found: dict[str, tuple[int, int | None]] = {}
    for tensor in narrow:
        values, source = after.get(tensor.name, np.empty(0))[:_SAMPLE], before.get(tensor.name)
        distinct = _distinct(values)
        if source is not None:
            more = _distinct(source[: values.size])
            if more > distinct or not np.array_equal(source[: values.size], values[: source.size]):
                found[tensor.name] = distinct, more
        elif distinct > 1 and tensor.role != "norm" and (len(tensor.shape) == 1 or _FEW * distinct <= min(values.size, 512)):
            found[tensor.name] = distinct, None
    if found:
        name, (left, source_values) = min(found.items(), key=lambda each: (each[1][1] is None, each[1][0]))
        numbers: dict[str, Value] = {"name": name, "dtype": facts.tensors[name].dtype, "distinct": left}
        if source_values is None:
            yield finding("keep-fp32", "warning", "kept-in-fp32-but-stored-narrower", list(found), **numbers)
        else:
            yield finding("keep-fp32", "warning", "rounded-though-kept-in-fp32", list(found), **numbers, before=source_values)


def _distinct(values: Floats) -> int:
    return int(np.unique(values).size)


# --- load-dtype ----------------------------------------------------------------------------------------------------


def load_dtype(facts: EngineFacts) -> Iterator[Finding]:
    """Tell in which dtype transformers loads a model whose configuration does not state the one that is stored.

    transformers 4 loads in fp32 unless it is asked for another dtype; transformers 5 in the dtype that config.json states, `dtype` before
    `torch_dtype`, else in that of the first file's first floating tensor, by name.
    """
    plain = [tensor for tensor in facts.tensors.values() if tensor.dtype in _FLOATS and not tensor.buffer]
    if not plain or facts.settings or not {"model_type", "architectures"} & facts.config.keys():
        return
    sizes = {dtype: sum(tensor.elements for tensor in plain if tensor.dtype == dtype) for dtype in _FLOATS}
    stored = TORCH_NAMES[max(sizes, key=lambda dtype: sizes[dtype])]
    stated = [_short(plain_dtype(facts.config[key])) for key in ("dtype", "torch_dtype") if isinstance(facts.config.get(key), str)]
    named = facts.loading.dtype if facts.loading is not None and not facts.loading.refused else ""
    first = min(plain, key=lambda tensor: (tensor.file, tensor.name))
    loaded = named or next(iter(stated), "") or TORCH_NAMES[first.dtype]
    differs = loaded != stored and loaded in TORCH_NAMES.values()
    if differs or len(set(stated)) > 1 or not (stated or named):
        texts = tuple(dict.fromkeys(stated)) or ("no dtype",)
        yield finding("load-dtype", "info", "loaded-in-another-dtype", stored=stored, loaded=loaded, stated=texts)


# --- companions ----------------------------------------------------------------------------------------------------

_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_ROWS_BYTES, _WINDOW, _TOKENS = 40_000, 16, 10  # bytes read around a row; rows on each side of it; tokens looked at
_NEAR = 2.0**-8  # |a - b| / |a| of rows that were never trained apart: they began as one, rounded to bf16
_TABLE = re.compile(r"(embed_tokens|tok_embeddings|wte|word_embeddings|embed_in|embeddings?)(\.weight)?")


def companions(facts: EngineFacts) -> Iterator[Finding]:
    """Find end tokens and tokens of the chat template whose rows were never trained, and files that differ from those of the base."""
    yield from _untrained_rows(facts)
    if facts.base is None:
        return
    ours, theirs = _companions(facts), _companions(facts.base)
    has_files = any(path.startswith("tokenizer") for path in facts.checkpoint.repository.files)
    lost = {key for key in ("chat_template", "generation") if has_files and theirs[key] is not None and ours[key] is None}
    differ = [key for key in theirs if None not in (ours[key], theirs[key]) and ours[key] != theirs[key]]
    if lost or differ:
        pairs = tuple(f"{key} {_short(theirs[key])} -> {_short(ours[key] or 'none')}" for key in theirs if key in lost or key in differ)
        yield finding("companions", "warning" if lost else "info", "companions-differ", differ=pairs, base=facts.base.checkpoint.ref)


def _companions(facts: EngineFacts) -> dict[str, Any]:
    """Return what stands beside the weights: ids of special tokens, the vocabulary, chat template, settings of generation."""
    generation, tokenizer = facts.json("generation_config.json"), facts.json("tokenizer_config.json")
    found: dict[str, Any] = {}
    for key in (*_IDS, "vocab_size"):
        found[key] = next((section[key] for section in facts.sections() if section.get(key) is not None), None)
    found |= {f"generation {key}": generation.get(key) for key in _IDS}
    for key in ("eos_token", "pad_token", "tokenizer_class"):
        value = tokenizer.get(key)
        found[key] = value.get("content") if isinstance(value, dict) else value
    added = tokenizer.get("added_tokens_decoder")
    found["added tokens"] = len(added) if isinstance(added, dict) else None
    files = facts.checkpoint.repository.files
    found["chat_template"] = files.get("chat_template.jinja") or _size(tokenizer.get("chat_template"))
    found["generation"] = bool(generation) or None
    return found


def _size(text: Any) -> int | None:
    return len(text.encode()) if isinstance(text, str) and text else None


def _short(value: Any) -> str:
    return printable(str(value)[:40])


def _untrained_rows(facts: EngineFacts) -> Iterator[Finding]:
    """Find rows of end tokens, and of tokens that the chat template writes, that are zero or equal to rows of other tokens."""
    table = next(
        (t for t in facts.tensors.values() if t.role == "embedding" and len(t.shape) == 2 and _TABLE.search(t.name) and t.dtype in _FLOATS),
        None,
    )
    tokens = _tokens(facts)
    if table is None or not tokens or not table.shape[1]:
        return
    rows, width = table.shape
    bad: dict[str, int] = {}
    window = min(_WINDOW, _ROWS_BYTES // (2 * width * DTYPE_BITS[table.dtype] // 8))
    looked = {number: row for start in {_first(n, window, rows) for n in tokens.values() if n < rows}
              for number, row in _read_rows(facts, table, start, 2 * window + 1)}  # fmt: skip
    ends = set(tokens.values())
    for name, number in tokens.items():
        row = looked.get(number)
        if row is None or not np.isfinite(row).all():
            continue
        same = [other for other, values in looked.items() if other != number and _near(row, values)]
        padding = facts.config.get("pad_token_id")
        if (not row.any() and number != padding) or (row.any() and (len(same) > 1 or set(same) & ends)):
            bad[name] = len(same) + 1
    if bad:
        name, same_rows = max(bad.items(), key=lambda each: each[1])
        yield finding("companions", "warning", "tokens-never-trained", (table.name,), tokens=len(bad), token=name, rows=same_rows)


def _first(number: int, window: int, rows: int) -> int:
    return max(0, min(number - window, rows - 2 * window - 1))


def _read_rows(facts: EngineFacts, table: Tensor, start: int, count: int) -> Iterator[tuple[int, Floats]]:
    width = table.shape[1]
    values = facts.values.read(facts.checkpoint, table, start * width, count * width)
    for index in range(values.size // width):
        yield start + index, values[index * width : (index + 1) * width]


def _near(one: Floats, other: Floats) -> bool:
    return bool(np.linalg.norm(one - other) <= _NEAR * np.linalg.norm(one))


def _tokens(facts: EngineFacts) -> Mapping[str, int]:
    """Return the ids of the end tokens, and of added tokens in the chat template, by name."""
    stated: Sequence[Mapping[str, Any]] = [*facts.sections(), facts.json("generation_config.json")]
    found: dict[str, int] = {}
    for section in stated:
        ids = section.get("eos_token_id")
        for number in ids[:_TOKENS] if isinstance(ids, list) else [ids]:
            if type(number) is int and 0 <= number < 10**9:
                found[f"eos_token_id {number}"] = number
    tokenizer = facts.json("tokenizer_config.json")
    added, template = tokenizer.get("added_tokens_decoder"), tokenizer.get("chat_template")
    if not isinstance(added, dict) or not isinstance(template, str):
        return found
    for number, token in added.items():
        content = str(token.get("content")) if isinstance(token, dict) else ""
        if (
            len(content) > 2
            and content in template
            and number.isdecimal()
            and len(number) < 9
            and int(number) not in found.values()
            and len(found) < _TOKENS
        ):
            found[content[:60]] = int(number)
    return found
