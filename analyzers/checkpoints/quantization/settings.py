"""What config.json says of quantized weights, where names, dtypes and shapes of tensors leave it open."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_SCHEMES = 16  # Tried on each tensor; real configurations have a few.


class Scheme(NamedTuple):
    """One stated way to quantize. bits: of a code, 0 if unknown; group: number of values that share a scale, 0 if unknown."""

    bits: int = 0
    group: int = 0
    mode: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """Statements of config.json, which are untrusted.

    block: rows and columns that share a scale of fp8; fp4: whether bytes of experts are E2M1 codes; schemes: those of the model; modules:
    path of a module -> its own scheme; second: whether zero points are those of the second version of GPTQ's format; acted: whether its
    groups are in another order than its rows.
    """

    block: tuple[int, int] | None = None
    fp4: bool = False
    schemes: tuple[Scheme, ...] = ()
    modules: Mapping[str, Scheme] = field(default_factory=dict)
    second: bool = False
    acted: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any] | None) -> "Settings":
        """Read config.json: what transformers, GPTQ, AWQ, compressed-tensors and MLX write."""
        whole = config or {}
        found = next((each for name in ("quantization_config", "quantization") if isinstance(each := whole.get(name), dict)), {})
        block = found.get("weight_block_size")
        lengths = block if isinstance(block, list) and all(map(length, block)) else []
        return cls(
            (lengths[0], lengths[1]) if len(lengths) == 2 else None,
            whole.get("expert_dtype") == "fp4",
            tuple(dict.fromkeys(_schemes(found)))[:_SCHEMES],
            {name: _scheme(each) for name, each in found.items() if isinstance(each, dict) and length(each.get("bits"))},
            found.get("checkpoint_format") == "gptq_v2",
            found.get("desc_act") is True,
        )

    def schemes_of(self, module: str) -> tuple[Scheme, ...]:
        """Return the schemes that a module may have: its own, or those of the model."""
        own = self.modules.get(module)
        return self.schemes if own is None else (own,)


def _schemes(found: Mapping[str, Any]) -> Iterator[Scheme]:
    groups = found.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            yield _scheme(weights)
    if length(found.get("bits")):
        yield _scheme(found)


def _scheme(stated: Mapping[str, Any]) -> Scheme:
    bits, group = (length(stated.get(name)) for name in ("bits" if "bits" in stated else "num_bits", "group_size"))
    return Scheme(bits, group, str(stated.get("mode", "")))


def length(value: Any) -> int:
    """Return a stated number from 1 on, 0 for anything else."""
    return value if type(value) is int and 0 < value < 1 << 31 else 0
