"""Normalizes the dtype that a configuration states, in spellings of torch, of transformers and of users."""

TORCH_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Names in safetensors -> in torch, which configurations state."""
_SPELLINGS = {
    "half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16",
    "float": "float32", "single": "float32", "fp32": "float32", "f32": "float32", "double": "float64", "fp64": "float64", "f64": "float64",
}  # fmt: skip


def plain_dtype(stated: object) -> str:
    """Return torch's name of a dtype: "float16" for "torch.half" or "FP16"; unknown names are returned as text."""
    name = str(stated).strip().removeprefix("torch.")
    return _SPELLINGS.get(name.lower(), name.lower() if name.lower() in _SPELLINGS.values() else name)
