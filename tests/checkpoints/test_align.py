"""Which tensors of two checkpoints are the same parameter: what pairs up, what is cut, and that nothing is lost from sight."""

import time
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from analyzers.checkpoints import Access, Alignment, Checkpoint, Tensor, Unmatched, align, open_checkpoint
from analyzers.checkpoints.matching.tied_heads import TIED_UNLESS_SAID, may_tie, repeated, states_ties
from analyzers.checkpoints.tensor import DTYPE_BITS
from analyzers.checkpoints.tensor_names.prefixes import bare_name
from analyzers.checkpoints.tensor_names.roles import is_buffer, layer, role
from analyzers.core.errors import InvalidFilter
from tests.checkpoints.counting_file import MemoryFile
from tests.checkpoints.test_stream import FakeRepository
from tests.dtype.checkpoints import normal, write

Shapes = dict[str, tuple[int, ...] | tuple[tuple[int, ...], str]]


def described(tensors: Shapes, config: Mapping[str, Any] | None = None) -> Checkpoint:
    """A checkpoint of which only the headers are there: name -> shape, or shape and dtype."""
    found: list[Tensor] = []
    for name, what in sorted(tensors.items()):
        shape, dtype = what if len(what) == 2 and isinstance(what[1], str) else (what, "BF16")
        nbytes = prod(shape) * DTYPE_BITS[dtype] // 8
        found.append(Tensor(name, dtype, shape, 0, 64 * len(found), nbytes, role(name), layer(name), is_buffer(name, shape, dtype)))
    return Checkpoint(
        "fake", "0", False, (MemoryFile(b""),), tuple(found), None if config is None else dict(config), None, (), 2, FakeRepository(2)
    )


def pairs(alignment: Alignment, tuned: int = 0) -> dict[str, str]:
    """Base name -> tuned name of what is compared."""
    return {group.base.name: tensor.name for group in alignment.groups if (tensor := group.tuned[tuned]) is not None}


def names(tensors: Sequence[Tensor]) -> list[str]:
    return [tensor.name for tensor in tensors]


def nothing_but(unmatched: Unmatched, *kinds: str) -> None:
    """All lists are empty but those of ``kinds``, which are not."""
    assert {kind for kind in Unmatched.__dataclass_fields__ if getattr(unmatched, kind)} == set(kinds)


LAYER: Shapes = {
    "layers.0.self_attn.q_proj.weight": (8, 4), "layers.0.mlp.up_proj.weight": (16, 4), "layers.1.self_attn.q_proj.weight": (8, 4),
    "layers.1.mlp.up_proj.weight": (16, 4), "norm.weight": (4,), "embed_tokens.weight": (50, 4),
}  # fmt: skip
HEAD: Shapes = {"lm_head.weight": (50, 4)}
VISION: Shapes = {"blocks.0.attn.qkv.weight": (12, 4), "blocks.0.norm1.weight": (4,), "patch_embed.proj.weight": (4, 3, 2, 2)}


def under(prefix: str, tensors: Shapes) -> Shapes:
    return {prefix + name: shape for name, shape in tensors.items()}


# Beginnings of the body in base and tuned checkpoint, and what else each of them has.
WAYS: dict[str, tuple[str, str, Shapes, Shapes]] = {
    "body alone": ("model.", "", {}, {}),
    "transformer": ("transformer.", "", {}, {}),
    "gpt_neox": ("gpt_neox.", "", {}, {}),
    "peft": ("model.", "base_model.model.model.", HEAD, under("base_model.model.", HEAD)),
    "DDP": ("model.", "module.model.", HEAD, under("module.", HEAD)),
    "compiled": ("model.", "_orig_mod.model.", HEAD, under("_orig_mod.", HEAD)),
    "DDP of compiled": ("model.", "module._orig_mod.model.", HEAD, under("module._orig_mod.", HEAD)),
    "text of a multimodal model": (
        "model.",
        "language_model.model.",
        HEAD,
        {**under("language_model.", HEAD), **under("vision_tower.", VISION)},
    ),
    "two namings of a multimodal model": (
        "model.language_model.",
        "language_model.model.",
        {**HEAD, **under("model.visual.", VISION)},
        {**under("language_model.", HEAD), **under("visual.", VISION)},
    ),
    "a component": ("", "text_encoder/", {}, under("unet/", VISION)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("swapped", [False, True])
def test_known_beginnings(way: str, swapped: bool) -> None:
    before, after, base_only, tuned_only = WAYS[way]
    base, tuned = under(before, LAYER) | base_only, under(after, LAYER) | tuned_only
    expected = {before + name: after + name for name in LAYER}
    expected |= {a: b for a in base_only for b in tuned_only if bare_name(a)[0] == bare_name(b)[0]}
    if swapped:
        base, tuned, expected = tuned, base, {b: a for a, b in expected.items()}
    alignment = align(described(base), [described(tuned)])
    assert pairs(alignment) == expected
    (unmatched,) = alignment.unmatched
    assert {pair.base.name: pair.tuned.name for pair in unmatched.renamed} == {a: b for a, b in expected.items() if a != b}
    assert set(names(unmatched.missing)) == set(base) - set(expected)
    assert set(names(unmatched.extra)) == set(tuned) - set(expected.values())
    assert not unmatched.misshapen and not unmatched.tied


def test_wrapped_modules_and_old_names_of_norms() -> None:
    base = described({f"bert.encoder.layer.0.output.LayerNorm.{leaf}": (4,) for leaf in ("gamma", "beta")})
    tuned = described({f"encoder.layer.0._orig_mod.output.LayerNorm.{leaf}": (4,) for leaf in ("weight", "bias")})
    alignment = align(base, [tuned])
    assert [(a.rpartition(".")[2], b.rpartition(".")[2]) for a, b in pairs(alignment).items()] == [("beta", "bias"), ("gamma", "weight")]
    nothing_but(alignment.unmatched[0], "renamed")


def test_what_is_ambiguous_is_not_renamed() -> None:
    base = described({"model.x.weight": (4, 4), "transformer.x.weight": (4, 4)})
    alignment = align(base, [described({"x.weight": (4, 4)})])
    assert not alignment.groups
    nothing_but(alignment.unmatched[0], "missing", "extra")
    alignment = align(described({"x.weight": (4, 4)}), [base])
    assert not alignment.groups
    nothing_but(alignment.unmatched[0], "missing", "extra")


def test_of_two_with_the_same_bare_name_the_one_that_fits_is_taken() -> None:
    """Of two text encoders the tuned one is the second, by its shapes."""
    first: Shapes = {f"layers.{i}.mlp.fc1.weight": (8, 4) for i in range(3)}
    second: Shapes = {f"layers.{i}.mlp.fc1.weight": (8, 6) for i in range(5)}
    alignment = align(described(under("text_encoder/", first) | under("text_encoder_2/", second)), [described(second)])
    assert pairs(alignment) == {f"text_encoder_2/{name}": name for name in second}
    nothing_but(alignment.unmatched[0], "missing", "renamed")


def test_shapes_that_differ() -> None:
    base = described({"a.mlp.up_proj.weight": (8, 4), "b.mlp.up_proj.weight": (8, 4), "c.conv.weight": (2, 3, 5), "norm.weight": (4,)})
    tuned = described({"a.mlp.up_proj.weight": (4, 8), "b.mlp.up_proj.weight": (9, 4), "c.conv.weight": (2, 5, 3), "norm.weight": (4, 1)})
    (unmatched,) = align(base, [tuned]).unmatched
    assert {pair.base.name: pair.form for pair in unmatched.relaid} == {
        "a.mlp.up_proj.weight": "transposed",
        "c.conv.weight": "channels moved",
        "norm.weight": "reshaped",
    }
    assert names([pair.base for pair in unmatched.misshapen]) == ["b.mlp.up_proj.weight"]
    nothing_but(unmatched, "misshapen", "relaid")


def test_resized_embeddings_and_heads_compare_the_rows_both_have() -> None:
    base = described({"model.embed_tokens.weight": (50, 4), "lm_head.weight": (50, 4), "lm_head.bias": (50,), "model.norm.weight": (4,)})
    more = described({"language_model.model.embed_tokens.weight": (64, 4), "lm_head.weight": (64, 4), "lm_head.bias": (64,)})
    fewer = described({"model.embed_tokens.weight": (30, 4), "lm_head.weight": (50, 5), "lm_head.bias": (20,), "model.norm.weight": (4,)})
    alignment = align(base, [more, fewer])
    sizes = {group.base.name: [side and (side.shape, side.nbytes) for side in group.sides] for group in alignment.groups}
    assert sizes == {
        "lm_head.bias": [((50,), 100), ((50,), 100), ((20,), 40)],
        "lm_head.weight": [((50, 4), 400), ((50, 4), 400), None],
        "model.embed_tokens.weight": [((50, 4), 400), ((50, 4), 400), ((30, 4), 240)],
        "model.norm.weight": [((4,), 8), None, ((4,), 8)],
    }
    first, second = alignment.unmatched
    assert {pair.tuned.shape for pair in first.resized} == {(64,), (64, 4)}
    assert {pair.tuned.shape for pair in second.resized} == {(20,), (30, 4)}
    nothing_but(first, "resized", "renamed", "missing")
    nothing_but(second, "resized", "misshapen")
    (alone,) = align(base, [fewer]).groups[1:2]
    assert alone.base.shape == (30, 4) and alone.base.nbytes == 240


def test_buffers_are_no_parameters_and_integers_are_listed() -> None:
    floats: Shapes = {"a.weight": (8, 4), "b.weight": (8, 4), "rotary.inv_freq": (4,), "x.position_ids": (1, 9)}
    base = described({**floats, "c.weight": ((8, 4), "I8")})
    tuned = described({"a.weight": ((8, 4), "I8"), "b.qweight": ((8, 1), "I32"), "c.weight": ((8, 2), "I8"), "h.0.attn.masked_bias": ()})
    (unmatched,) = align(base, [tuned]).unmatched
    assert [(tensor.name, tensor.dtype) for tensor in unmatched.integers] == [("a.weight", "I8"), ("c.weight", "I8")]
    assert (names(unmatched.missing), names(unmatched.extra)) == (["b.weight"], ["b.qweight"])
    nothing_but(unmatched, "integers", "missing", "extra")


def test_filters_go_by_the_names_of_the_base() -> None:
    base = described(under("model.", LAYER) | HEAD)
    tuned = described(dict(LAYER) | {"layers.0.extra": (4,), "norm.extra": (4,)})
    alignment = align(base, [tuned], include="model.layers|layers.0.extra", exclude="q_proj")
    assert pairs(alignment) == {f"model.layers.{i}.mlp.up_proj.weight": f"layers.{i}.mlp.up_proj.weight" for i in range(2)}
    (unmatched,) = alignment.unmatched
    assert names(unmatched.extra) == ["layers.0.extra"]
    nothing_but(unmatched, "renamed", "extra")
    with pytest.raises(InvalidFilter, match="No tensor is left"):
        align(base, [tuned], include="^layers")


TIED = {"tie_word_embeddings": True}
UNTIED = {"tie_word_embeddings": False}
STORED, LEFT_OUT = under("model.", LAYER) | HEAD, under("model.", LAYER)


@pytest.mark.parametrize(
    ("base", "tuned", "expected"),
    [(STORED, STORED, "tied"), (LEFT_OUT, STORED, "tied"), (STORED, LEFT_OUT, "tied"), (LEFT_OUT, LEFT_OUT, None)],
)
def test_copies_of_the_embedding_count_once(base: Shapes, tuned: Shapes, expected: str | None) -> None:
    sides = [described(base), described(tuned)]
    (unmatched,) = align(sides[0], sides[1:], repeats=[{"lm_head.weight": True}] * 2).unmatched
    found = {kind for kind in Unmatched.__dataclass_fields__ if names(getattr(unmatched, kind)) == ["lm_head.weight"]}
    assert found == ({expected} if expected else set())
    assert len(align(sides[0], sides[1:], repeats=[{"lm_head.weight": False}] * 2).groups) == len(LAYER) + (base is tuned is STORED)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (TIED, True), (UNTIED, False), ({}, None), (None, None), ({"model_type": "gemma2"}, True),
        ({"model_type": "gemma2"} | UNTIED, False), ({"text_config": TIED}, True), ({"text_config": TIED} | UNTIED, False),
        ({"text_config": {"model_type": "gemma3_text"}}, True),
        ({"tie_word_embeddings": "yes", "model_type": ["bert"], "text_config": 3}, None),
    ],
)  # fmt: skip
def test_what_configurations_state(config: dict[str, Any] | None, expected: bool | None) -> None:
    assert (states_ties(config), may_tie(config)) == (expected is True, expected is not False)


def test_memory_with_two_names_counts_once(tmp_path: Path) -> None:
    """torch.save stores what is tied once; a copy of it on the other side is no other parameter."""
    embedding, norm = normal(50, 4), normal(4)
    (tmp_path / "base").mkdir()
    tied = {"model.embed_tokens.weight": embedding, "norm.weight": norm, "lm_head.weight": embedding}
    torch.save(tied, tmp_path / "base" / "pytorch_model.bin")
    write(tmp_path / "tuned", tied | {"lm_head.weight": embedding.clone()}, TIED)
    base, tuned = (open_checkpoint(str(tmp_path / name), Access(local=True)) for name in ("base", "tuned"))
    alignment = align(base, [tuned], repeats=[repeated(base), repeated(tuned)])
    assert set(pairs(alignment)) == {"model.embed_tokens.weight", "norm.weight"}
    assert names(alignment.unmatched[0].tied) == ["lm_head.weight"]


def test_models_that_tie_unless_said_do_so_in_transformers() -> None:
    from transformers import CONFIG_MAPPING

    for kind in ("bert", "gemma2", "gpt2", "opt", "roberta", "t5"):
        assert kind in TIED_UNLESS_SAID and CONFIG_MAPPING[kind]().tie_word_embeddings is True


tensors = st.dictionaries(
    st.tuples(
        st.lists(st.sampled_from(["model", "language_model", "_orig_mod", "module", "text/model"]), max_size=3),
        st.sampled_from(["norm.gamma", "norm.weight", "norm", "embed_tokens.weight", "lm_head.weight", "layers.0.w", "inv_freq", "model"]),
    ).map(lambda parts: ".".join([*parts[0], parts[1]])),
    st.tuples(st.lists(st.integers(0, 3), max_size=3).map(tuple), st.sampled_from(["BF16", "F32", "I8"])),
    max_size=7,
)
configs = st.sampled_from([None, TIED, UNTIED])


@given(tensors, configs, st.lists(st.tuples(tensors, configs), min_size=1, max_size=3))
def test_every_parameter_is_accounted_for_once(
    base: Shapes, config: dict[str, Any] | None, tuned: list[tuple[Shapes, dict[str, Any] | None]]
) -> None:
    """Every parameter of either side is compared, or in one list: each once, but for what hides behind integers of the other side."""
    whole, others = described(base, config), [described(*each) for each in tuned]
    alignment = align(whole, others)
    order = {tensor.name: i for i, tensor in enumerate(whole.tensors)}
    assert sorted(alignment.groups, key=lambda group: order[group.base.name]) == list(alignment.groups)
    for i, (other, unmatched) in enumerate(zip(others, alignment.unmatched, strict=True)):
        for group in alignment.groups:
            side = group.tuned[i]
            assert side is None or (side.has_values and group.base.has_values and side.elements <= group.base.elements)
        compared = pairs(alignment, i)
        beside = {*names(unmatched.tied), *names(unmatched.integers)}
        mine = [*compared, *names(unmatched.missing), *(pair.base.name for pair in unmatched.misshapen)]
        theirs = [*compared.values(), *names(unmatched.extra), *(pair.tuned.name for pair in unmatched.misshapen)]
        bare = {bare_name(name)[0] for name in beside}
        for accounted, checkpoint in ((mine, whole), (theirs, other)):
            assert len(set(accounted)) == len(accounted)
            left = {tensor.name for tensor in checkpoint.tensors if not tensor.buffer} - set(accounted)
            assert all(name in beside or bare_name(name)[0] in bare for name in left)


def test_tens_of_thousands_of_experts_take_moments() -> None:
    def experts(before: str) -> Checkpoint:
        names = (f"{before}layers.{i}.mlp.experts.{j}.up_proj.weight" for i in range(60) for j in range(200))
        found = tuple(Tensor(name, "BF16", (2048, 7168), 0, 0, 29_360_128, "expert", 0, False) for name in names)
        return Checkpoint("fake", "0", False, (), found, None, None, (), 2, FakeRepository(2))

    base = experts("model.")
    for tuned in (experts("model."), experts("model.language_model.")):
        start = time.process_time()
        alignment = align(base, [tuned])
        assert time.process_time() - start < 10  # a tenth of a second on a quiet machine; minutes where each is compared with all
        assert len(alignment.groups) == 12_000
