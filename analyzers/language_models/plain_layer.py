"""Decoder layers of the plain kind, forward and backward by hand: on a processor two thirds of the time of autograd, and half the memory.

Of a layer x + A(x), A(x) = o(attention(turned q, k; v of norm(x))), then y + F(y), F(y) = down(silu(gate) up of norm(y)). Each thread takes
some samples through it alone; what stands between the products is done in one pass (`numerics.layers`); gradients are added up where they
are computed; and only what the backward pass needs is kept. What comes out is the layer's own but for rounding, and for the parameters,
which have no gradients here. Attention is torch's, with its way back.

Axes: S samples, L positions, N = S L, n of some samples, d width, F neurons, D size of a head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer, MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm

from analyzers.language_models.layer_capture import Brought
from analyzers.language_models.side_by_side import side_by_side
from analyzers.numerics import layers

Magnitudes = tuple[float, float, float]
"""The largest of the gradients of gate and of up, and of the activations."""

Turns = tuple[Tensor, Tensor]
"""Cosines and sines of the positions' angles, (1, L, D) each."""

# Their code was read: they are the layer above, to the letter.
_KINDS: set[type[nn.Module]] = {LlamaDecoderLayer, MistralDecoderLayer, Qwen2DecoderLayer}
_NORMS: set[type[nn.Module]] = {LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm}
_CALLED_WITH = {"attention_mask", "position_embeddings", "position_ids", "past_key_values", "use_cache"}

# Rows that go through a layer together, products of fewer being slower; and where it is done twice to save memory.
_ROWS, _ROWS_AGAIN = 2048, 512


@dataclass(frozen=True, eq=False, slots=True)
class _Part:
    """Some samples on their way through a layer, (n, ..) each, without gate and up.

    rows: theirs of N. middle: what goes into the second norm, the inverse 1 / r of both norms. heads: queries, keys and values, (.., heads,
    L, D), and attended what came of them, with the way back.
    """

    rows: slice
    inverse: Tensor
    heads: list[Tensor]
    attended: Tensor
    middle: Tensor
    middle_inverse: Tensor


@dataclass(frozen=True, eq=False, slots=True)
class Kept:
    """What a backward pass needs, and no more: to compute again what one pass gives takes less time than new memory.

    gate, up: (N, F), what these maps gave.
    """

    parts: list[_Part]
    gate: Tensor
    up: Tensor


@dataclass(frozen=True, eq=False, slots=True)
class PlainLayer:
    """One such layer, with its weights in float32 on a processor."""

    attention: Any
    norm: Any
    ffn_norm: Any
    ffn: Any

    @classmethod
    def of(cls, layer: nn.Module) -> Self | None:
        """The layer, where it is plain."""
        if type(layer) not in _KINDS or layer.training:
            return None
        each = cast(Any, layer)
        found = cls(each.self_attn, each.input_layernorm, each.post_attention_layernorm, each.mlp)
        ffn, attention = found.ffn, found.attention
        maps = (*found._projections, attention.o_proj, ffn.gate_proj, ffn.up_proj, ffn.down_proj)
        known = {type(found.norm), type(found.ffn_norm)} <= _NORMS and isinstance(ffn.act_fn, (nn.SiLU, SiLUActivation))
        plain = all(type(module) is nn.Linear for module in maps) and attention.config._attn_implementation == "sdpa"
        moved = any(hasattr(module, "_hf_hook") for module in layer.modules())  # weights come and go with what is called
        here = all(one.dtype == torch.float32 and one.device.type == "cpu" and one.is_contiguous() for one in layer.parameters())
        return found if known and plain and here and not moved else None

    def takes(self, named: Mapping[str, Any]) -> bool:
        """Whether what the layer is called with, beside its input, is plain too."""
        if not named.keys() <= _CALLED_WITH or named.get("attention_mask") is not None or named.get("past_key_values") is not None:
            return False
        cosines: Tensor = named["position_embeddings"][0]
        turned = cosines.dtype == torch.float32 and cosines.shape[0] == 1 and cosines.shape[2] == self.attention.head_dim
        return turned and self.attention.is_causal

    @property
    def _projections(self) -> tuple[Any, Any, Any]:
        return self.attention.q_proj, self.attention.k_proj, self.attention.v_proj

    def forward(self, came: Tensor, turns: Turns, keep: bool) -> tuple[Tensor, Kept | None]:
        """What goes on, (S, L, d), and what `backward` needs of the way if it is to be kept. came: (S, L, d)."""
        rows, output = _flat(came), torch.empty_like(_flat(came))
        gate, up = self._room(rows) if keep else (None, None)

        def go(here: slice) -> _Part | None:
            of_gate, of_up = self._room(rows[here]) if gate is None or up is None else (gate[here], up[here])
            part = self._enter(rows, turns, here, of_gate, of_up)
            _mapped(self.ffn.down_proj, _activations(of_gate, of_up), output[here]).add_(part.middle)
            return part if keep else None

        pieces = _parts(came.shape, _ROWS if keep else _ROWS_AGAIN)
        parts = [part for part in side_by_side(go, pieces, rows.device, len(pieces)) if part is not None]
        return output.view(came.shape), None if gate is None or up is None else Kept(parts, gate, up)

    def backward(self, came: Tensor, turns: Turns, kept: Kept | None, lengths: Sequence[int], gradient: Tensor, further: bool) -> Brought:
        """From the gradient of what went on (S, L, d) that of what came, if it is to go ``further``; without what was kept, the way there
        is gone again. lengths: (S,), the positions of each sample that are not padding. Uses ``kept`` up.
        """
        rows, arrived, real = _flat(came), _flat(gradient), np.array(lengths)
        gate_proj, up_proj, down_proj = self.ffn.gate_proj, self.ffn.up_proj, self.ffn.down_proj
        gate, up = self._room(rows) if kept is None else (kept.gate, kept.up)
        entered, total, activations = torch.empty_like(rows), torch.empty_like(rows), torch.empty_like(gate)
        activity = np.zeros((len(came), gate.shape[1]))

        def back(part: _Part) -> Magnitudes:
            here, samples = part.rows, slice(part.rows.start // came.shape[1], part.rows.stop // came.shape[1])
            of_product = (arrived[here] @ down_proj.weight).numpy()
            of_gate, of_up, product = gate[here].numpy(), up[here].numpy(), activations[here].numpy()
            largest = layers.swiglu_gradient(of_product, of_gate, of_up, product, real[samples], activity[samples])
            _normed(self.ffn_norm, part.middle, part.middle_inverse, entered[here])
            if further:
                go_on(part)
            return largest

        def go_on(part: _Part) -> None:
            here = part.rows
            total[here] = arrived[here]
            _add_normed(self.ffn_norm, _back((gate_proj, up_proj), (gate[here], up[here])), part.middle, part.middle_inverse, total[here])
            of_attended = (total[here] @ self.attention.o_proj.weight).view_as(part.attended)
            of_heads = torch.autograd.grad(part.attended, part.heads, of_attended)
            flat = [each.transpose(1, 2).reshape(len(part.middle), -1) for each in of_heads]
            for each in flat[:2]:
                layers.rotate(each.numpy(), *_angles(turns), True)
            _add_normed(self.norm, _back(self._projections, flat), rows[here], part.inverse, total[here])

        def again(here: slice) -> Magnitudes:
            return back(self._enter(rows, turns, here, gate[here], up[here]))

        if kept is None:
            pieces = _parts(came.shape, _ROWS_AGAIN)
            found = list(side_by_side(again, pieces, rows.device, len(pieces)))
        else:
            found = list(side_by_side(back, kept.parts, rows.device, len(kept.parts)))
        maps = gate_proj, up_proj, down_proj
        return Brought(
            total.view(came.shape) if further else None,
            dict(zip(maps, (entered, entered, activations), strict=True)),
            dict(zip(maps, (gate, up, arrived), strict=True)),
            dict(zip(maps, np.max(found, axis=0).tolist(), strict=True)),  # NaN where one is
            activity=torch.from_numpy(activity).float(),
        )

    def _enter(self, came: Tensor, turns: Turns, here: slice, gate: Tensor, up: Tensor) -> _Part:
        """Some samples' way up to their gate and up, (n, F), which it fills. came: (N, d)."""
        length = turns[0].shape[1]
        inverse, middle_inverse = came.new_empty(2, here.stop - here.start)
        normed = _normed(self.norm, came[here], inverse)
        flat = [_mapped(each, normed) for each in self._projections]
        for each in flat[:2]:
            layers.rotate(each.numpy(), *_angles(turns), False)
        heads = queries, keys, values = [self._heads(each, length).requires_grad_() for each in flat]
        with torch.enable_grad():
            attended, _ = sdpa_attention_forward(self.attention, queries, keys, values, None, dropout=0.0, scaling=self.attention.scaling)
        middle = _mapped(self.attention.o_proj, attended.detach().view(len(normed), -1)).add_(came[here])
        normed = _normed(self.ffn_norm, middle, middle_inverse)
        _mapped(self.ffn.gate_proj, normed, gate)
        _mapped(self.ffn.up_proj, normed, up)
        return _Part(here, inverse, heads, attended, middle, middle_inverse)

    def _heads(self, rows: Tensor, length: int) -> Tensor:
        """(.., heads, L, D) of rows (n, heads D)."""
        size = self.attention.head_dim
        return rows.view(-1, length, rows.shape[1] // size, size).transpose(1, 2)

    def _room(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """For what gate and up give."""
        gate, up = (rows.new_empty(len(rows), each.out_features) for each in (self.ffn.gate_proj, self.ffn.up_proj))
        return gate, up


def _flat(tokens: Tensor) -> Tensor:
    """(N, d) of (S, L, d)."""
    return tokens.detach().reshape(-1, tokens.shape[-1]).contiguous()


def _angles(turns: Turns) -> tuple[layers.Floats, layers.Floats]:
    """Cosines and sines, (L, D)."""
    cosines, sines = (each[0].contiguous().numpy() for each in turns)
    return cosines, sines


def _parts(shape: torch.Size, rows: int) -> list[slice]:
    """Of N, those of some samples after the other: about so many ``rows`` at a time, as many parts as keep all threads busy."""
    samples, length, _ = shape
    threads = torch.get_num_threads()
    number = min(samples, threads * max(1, round(samples * length / (threads * rows))))
    return [slice(*each) for each in pairwise(samples * part // number * length for part in range(number + 1))]


def _mapped(module: Any, rows: Tensor, out: Tensor | None = None) -> Tensor:
    """What a linear map gives."""
    if out is None:
        out = rows.new_empty(len(rows), module.out_features)
    return torch.mm(rows, module.weight.t(), out=out) if module.bias is None else torch.addmm(module.bias, rows, module.weight.t(), out=out)


def _back(maps: Sequence[Any], gradients: Sequence[Tensor]) -> Tensor:
    """The gradient of what several maps were given, from those of what they gave."""
    total: Tensor = gradients[0] @ maps[0].weight
    for module, gradient in zip(maps[1:], gradients[1:], strict=True):
        total.addmm_(gradient, module.weight)
    return total


def _activations(gate: Tensor, up: Tensor) -> Tensor:
    product = torch.empty_like(gate)
    layers.swiglu(gate.numpy(), up.numpy(), product.numpy())
    return product


def _normed(norm: Any, rows: Tensor, inverse: Tensor, out: Tensor | None = None) -> Tensor:
    out = torch.empty_like(rows) if out is None else out
    layers.rms_norm(rows.numpy(), norm.weight.numpy(), norm.variance_epsilon, out.numpy(), inverse.numpy())
    return out


def _add_normed(norm: Any, gradient: Tensor, rows: Tensor, inverse: Tensor, total: Tensor) -> None:
    layers.add_rms_norm_gradient(gradient.numpy(), rows.numpy(), norm.weight.numpy(), inverse.numpy(), total.numpy())
