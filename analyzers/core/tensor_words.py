"""Names of dtypes, roles and layers in words, for reports, pages and terminals alike."""

DTYPES = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16", "F8_E4M3": "fp8 e4m3", "F8_E5M2": "fp8 e5m2"}
_ROLES = {"embedding": "embeddings", "expert": "experts", "router": "routers", "norm": "norms", "head": "heads", "other": "other tensors"}


def dtype_name(dtype: str) -> str:
    """Return the usual name of a safetensors dtype: bf16 for BF16. A dtype without a usual name keeps its own."""
    return DTYPES.get(dtype, dtype)


def format_name(key: str) -> str:
    """Return a report's format in words: fp8 e4m3 for fp8_e4m3, int4 with a zero point for int4_zp."""
    return key.replace("_zp", " with a zero point").replace("_offset", " with an offset").replace("_", " ")


def role_plural(role: str) -> str:
    """Return the plural name of the tensors of a role, one of `checkpoints.ROLES`."""
    return _ROLES.get(role, role)


def layer_name(layer: int | None) -> str:
    """Return the name of a layer; None stands for tensors outside the layers."""
    return "not in a layer" if layer is None else f"layer {layer}"
