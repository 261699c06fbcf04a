"""The small transformer that is trained under each signal, without its head, and the text it is trained on.

Two pre-norm layers (RMSNorm, rotary embeddings, causal attention, SwiGLU) and a final RMSNorm. Its vocabulary is the tokens that occur in
the text, renumbered, so that it is as fast for a tokenizer of 256,000 tokens as for any other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from analyzers.errors import InvalidCheckpoint
from analyzers.language_models.builtin_text import builtin_pairs

WIDTH, LAYERS, HEADS, INNER = 64, 2, 4, 160
LENGTH, BATCH = 64, 4
STD = 0.02
_BASE = 10_000.0


class Layer(nn.Module):
    """Attention and feed-forward network, pre-norm with residual connections."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        self.first_norm = nn.Parameter(torch.ones(WIDTH))
        self.second_norm = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """(S, L, width) to the same; rotation: (L, size / 2) complex, of the rotary embedding."""
        samples, length, _ = x.shape
        qkv = self.qkv(rms_norm(x, (WIDTH,), self.first_norm)).view(samples, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(_rotated(qkv[0], rotation), _rotated(qkv[1], rotation), qkv[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(samples, length, WIDTH))
        gate, up = self.gate_up(rms_norm(x, (WIDTH,), self.second_norm)).chunk(2, -1)
        hidden: Tensor = x + self.down(silu(gate) * up)
        return hidden


class Trunk(nn.Module):
    """token_ids (S, L) to hidden states (S, L, width), after the final norm."""

    rotation: Tensor

    def __init__(self, vocabulary: int, seed: int) -> None:
        """Weights of ``seed``, the same on every device, N(0, 0.02^2); gains of norms 1."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.Parameter(torch.ones(WIDTH))
        size = WIDTH // HEADS
        angles = torch.arange(LENGTH)[:, None] * _BASE ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("rotation", torch.polar(torch.ones_like(angles), angles), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=STD, generator=generator)

    def forward(self, token_ids: Tensor) -> Tensor:
        """See the class."""
        hidden = self.embedding(token_ids)
        for layer in self.layers:
            hidden = layer(hidden, self.rotation[: token_ids.shape[1]])
        return rms_norm(hidden, (WIDTH,), self.norm)


@dataclass(frozen=True, eq=False, slots=True)
class Text:
    """rows: (R, LENGTH + 1), the built-in text as one stream, its tokens renumbered in the order of their ids; vocabulary: how many."""

    rows: Tensor
    vocabulary: int

    @classmethod
    def of(cls, tokenize: Callable[[str], Sequence[int]]) -> "Text":
        """tokenize: the token ids of a text. Raises InvalidCheckpoint for fewer than two rows."""
        stream = torch.tensor([token for pair in builtin_pairs() for token in tokenize(pair.prompt + pair.output)])
        whole = (len(stream) - 1) // LENGTH
        if whole < 2:
            raise InvalidCheckpoint(f"The tokenizer splits the built-in text into {len(stream):,} tokens, too few to train on.")
        known, renumbered = torch.unique(stream, return_inverse=True)
        return cls(renumbered[: whole * LENGTH + 1].unfold(0, LENGTH + 1, LENGTH), len(known))


def _rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """(S, heads, L, size), each pair of numbers rotated by the angle of its position."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * rotation).flatten(-2)
