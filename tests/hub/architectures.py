"""Defines the large models of the benchmarks as virtual checkpoints: names and shapes of tensors, and configurations."""

from collections.abc import Iterator
from functools import partial

from .generated import checkpoint
from .quantized import LAYOUTS, quantized
from .repositories import Contents
from .updates import updated_values

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def _attention(prefix: str, hidden: int, heads: int, key_heads: int, head: int) -> Shapes:
    yield f"{prefix}.self_attn.q_proj.weight", (heads * head, hidden)
    yield f"{prefix}.self_attn.k_proj.weight", (key_heads * head, hidden)
    yield f"{prefix}.self_attn.v_proj.weight", (key_heads * head, hidden)
    yield f"{prefix}.self_attn.o_proj.weight", (hidden, heads * head)
    yield f"{prefix}.input_layernorm.weight", (hidden,)
    yield f"{prefix}.post_attention_layernorm.weight", (hidden,)


def _mlp(prefix: str, hidden: int, width: int) -> Shapes:
    yield f"{prefix}.gate_proj.weight", (width, hidden)
    yield f"{prefix}.up_proj.weight", (width, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, width)


def llama_tensors(layers: int = 80, hidden: int = 8192, width: int = 28672, vocabulary: int = 128256) -> Shapes:
    """Return names and shapes of a Llama-like model; by default 80 layers, 70.6 billion parameters."""
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(layers):
        yield from _attention(f"model.layers.{layer}", hidden, hidden // 128, max(1, hidden // 1024), 128)
        yield from _mlp(f"model.layers.{layer}.mlp", hidden, width)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)


def llama(
    layers: int = 80,
    hidden: int = 8192,
    width: int = 28672,
    vocabulary: int = 128256,
    shards: int = 30,
    lineage: str = "bf16",
    update: str = "none",
) -> dict[str, bytes | Contents]:
    """Make a Llama-like model; by default 141 GB in bf16 in 30 shards.

    lineage: a key of `generated.LINEAGES`, or of `quantized.LAYOUTS`; update: the fine-tune, a key of `updates.UPDATES`.
    """
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": width,
        "num_hidden_layers": layers, "num_attention_heads": hidden // 128, "num_key_value_heads": max(1, hidden // 1024),
        "vocab_size": vocabulary, "tie_word_embeddings": False, "dtype": "bfloat16",
    }  # fmt: skip
    tensors, values = llama_tensors(layers, hidden, width, vocabulary), partial(updated_values, update)
    if lineage in LAYOUTS:
        return quantized(lineage, tensors, config, shards, values())
    return checkpoint(tensors, config, lineage, shards, values)


def lora(layers: int, hidden: int, width: int, vocabulary: int) -> dict[str, bytes | Contents]:
    """Make a LoRA of rank 64 of all linear layers of a `llama`, in bf16."""
    matrices = {
        name.removesuffix(".weight"): shape
        for name, shape in llama_tensors(layers, hidden, width, vocabulary)
        if len(shape) == 2 and "layers" in name
    }

    def factors() -> Shapes:
        for name, (rows, columns) in matrices.items():
            yield f"base_model.model.{name}.lora_A.weight", (64, columns)
            yield f"base_model.model.{name}.lora_B.weight", (rows, 64)

    modules = sorted({name.rpartition(".")[2] for name in matrices})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 64, "lora_alpha": 1, "target_modules": modules}
    return {f"adapter_{name}": contents for name, contents in checkpoint(factors(), config).items()}


def mixture(
    layers: int = 94, experts: int = 319, hidden: int = 4096, width: int = 1536, shards: int = 100, lineage: str = "bf16"
) -> dict[str, bytes | Contents]:
    """Make a mixture of experts; by default 90,619 tensors, 1.1 TB in bf16 in 100 shards."""
    vocabulary = 151936

    def tensors() -> Shapes:
        yield "model.embed_tokens.weight", (vocabulary, hidden)
        for layer in range(layers):
            yield from _attention(f"model.layers.{layer}", hidden, 64, 4, 128)
            yield f"model.layers.{layer}.mlp.gate.weight", (experts, hidden)
            for expert in range(experts):
                yield from _mlp(f"model.layers.{layer}.mlp.experts.{expert}", hidden, width)
        yield "model.norm.weight", (hidden,)
        yield "lm_head.weight", (vocabulary, hidden)

    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": hidden, "moe_intermediate_size": width,
        "num_hidden_layers": layers, "num_experts": experts, "num_attention_heads": 64, "num_key_value_heads": 4,
        "vocab_size": vocabulary, "tie_word_embeddings": False, "dtype": "bfloat16",
    }  # fmt: skip
    return checkpoint(tensors(), config, lineage, shards)
