"""Reads the sizes of attention heads from configurations, unchecked: shapes and values decide whether they are true."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MOST = 1 << 20
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_COUNT = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_GROUPS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_LENGTH = ("head_dim", "kv_channels", "d_kv")


def head_lengths(configs: Sequence[Mapping[str, Any] | None]) -> list[int]:
    """Return the lengths of an attention head that the configurations state or imply."""
    return list(dict.fromkeys(length for part in _parts(configs) for length in _lengths(part)))


def head_rows(configs: Sequence[Mapping[str, Any] | None]) -> dict[str, int]:
    """Return the rows of q, k and v in a fused matrix, from the first configuration that states them; empty if none does."""
    for part in _parts(configs):
        count, length = _number(part, _COUNT), next(_lengths(part), 0)
        if count and length:
            groups = _number(part, _GROUPS) or (1 if part.get("multi_query") is True else count)
            return {"q": count * length, "k": groups * length, "v": groups * length}
    return {}


def _parts(configs: Sequence[Mapping[str, Any] | None]) -> Iterator[Mapping[str, Any]]:
    for config in configs:
        if config is not None:
            text = config.get("text_config")
            yield from [text, config] if isinstance(text, dict) else [config]


def _lengths(part: Mapping[str, Any]) -> Iterator[int]:
    stated = _number(part, _LENGTH)
    if stated:
        yield stated
    hidden, count = _number(part, _HIDDEN), _number(part, _COUNT)
    if hidden and count and hidden % count == 0:
        yield hidden // count


def _number(part: Mapping[str, Any], names: Sequence[str]) -> int:
    return next((part[name] for name in names if type(part.get(name)) is int and 0 < part[name] < _MOST), 0)
