"""Inputs, activations and output gradients of the linear maps of every unit, from one forward and one backward pass, layer by layer.

The gradient of unit n in sample s is the sum over the tokens t of s of left[t, n] right[t], by linear map (`Block`).

Axes: S samples, N tokens of a micro-batch including padding, R rows routed to experts, T tokens that have a gradient, F units, d width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from analyzers.language_models.batch import Batch
from analyzers.language_models.ffn import FFN, expert_activation, layer_ffns
from analyzers.language_models.lm_head import losses_and_gradient
from analyzers.language_models.model_failures import not_finite, running
from analyzers.language_models.stages import Stages, micro_batches

Loss = Literal["mean", "sum"]
Mask = Callable[[Tensor | None, Tensor, Tensor, Tensor], Tensor]
"""Called with gate, up and their product, (.., F) each, and whether each token is real, (..,); returns the input of down. gate is taken
after its activation, up is the output of its linear map. Without a gate, gate is None and product is the activation of up."""
_NO_MASKS: Mapping[int, Mask] = {}


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """One linear map's share of the unit gradients: left (T, F), right (T, d), the same object for maps with the same input."""

    name: str
    left: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False, slots=True)
class UnitGradients:
    """Inputs and gradients of one FFN or expert, without tokens that have no gradient.

    layer, expert: those of the unit. sample: (T,), the sample of each token; the tokens of a sample are contiguous. blocks: gate, up, down
    or up, down: a neuron's gradient consists of its rows in gate and up and its column in down. activity: (S, F), sum of |activation| over
    all of a sample's tokens except the last, including tokens without gradient; ``tokens`` (S,) is their number. For an expert, over the
    tokens routed to it.
    """

    layer: int
    expert: int | None
    sample: Tensor
    blocks: tuple[Block, ...]
    activity: Tensor
    tokens: Tensor


class UnitPass:
    """A pass over ``batch``: exhaust `forward`, then `backward`.

    The loss is the sum over samples of the "mean" or "sum" of the cross-entropy over their answer tokens. Padding affects no result.
    masks: by layer, applied between an FFN's activation and its down map, in the forward pass and again in the backward pass.
    losses: (S,), after `forward`.
    """

    def __init__(self, model: nn.Module, batch: Batch, loss: Loss = "mean", masks: Mapping[int, Mask] = _NO_MASKS) -> None:
        self._model, self._loss, self._masks = model, loss, masks
        self._groups = micro_batches(batch.lengths)
        self._batches = [batch.part(group) for group in self._groups]
        # The last token predicts nothing.
        self._stages = Stages(model, [part.token_ids[:, :-1] for part in self._batches])
        self._gradients: list[Tensor] = []
        self.losses = torch.zeros(len(batch.lengths))

    def forward(self) -> Iterator[int]:
        """Run all layers, and yield the number of each before it runs. Raises InvalidCheckpoint if a loss is not finite."""
        stages = self._stages
        for i, call in enumerate(stages.calls):
            yield i
            with stages.module(i) as module, torch.no_grad(), running():
                masked = _Watched(self._units(call.layer, module), self._masks.get(call.layer)) if call.layer in self._masks else None
                for part, batch in zip(stages.parts, self._batches, strict=True):
                    if masked is not None:
                        masked.real = _real(batch)
                    part.hidden.append(stages.layer(i, part, part.hidden[i], module))
        for part, batch, group in zip(stages.parts, self._batches, self._groups, strict=True):
            losses, gradient = losses_and_gradient(stages, part.hidden.pop(), batch.labels, self._loss)
            if not torch.isfinite(losses).all():
                raise not_finite("The model's losses", gradient.dtype)
            self.losses = self.losses.to(losses)
            self.losses[group] = losses
            self._gradients.append(gradient)

    def backward(self) -> Iterator[UnitGradients]:
        """Yield the gradients of each unit, the last layer first, in unit order within a layer."""
        for i in reversed(range(len(self._stages.calls))):
            pieces = self._backward(i)
            while pieces:  # the caller then holds the only reference, and can free the tensors
                yield self._joined(pieces.pop(0))

    def close(self) -> None:
        """Free what the pass holds."""
        self._stages.close()

    def _units(self, layer: int, module: nn.Module) -> list[FFN]:
        return list(layer_ffns(self._model, layer, module))

    def _backward(self, i: int) -> list[list[UnitGradients]]:
        """Run the backward step of call ``i``. Returns for each unit the gradients of each micro-batch, with samples counted in it."""
        stages, layer = self._stages, self._stages.calls[i].layer
        with stages.module(i) as module:
            units = self._units(layer, module)
            watched = _Watched(units, self._masks.get(layer))
            pieces: list[list[UnitGradients]] = [[] for _ in units]
            for number, (part, batch) in enumerate(zip(stages.parts, self._batches, strict=True)):
                watched.clear(_real(batch))
                # The gradient of the first layer's input is not needed: the backward pass stops at its units.
                gradient, results = stages.backward(i, part, self._gradients[number], module, watched.targets, of_input=i > 0)
                if gradient is not None:
                    self._gradients[number] = gradient
                part.hidden.pop()
                for of_unit, piece in zip(pieces, watched.units_of(results, batch), strict=True):
                    of_unit.append(piece)
        return pieces

    def _joined(self, pieces: list[UnitGradients]) -> UnitGradients:
        """Join the micro-batches of one unit."""
        first, device = pieces[0], pieces[0].sample.device
        members = [torch.tensor(group, device=device) for group in self._groups]
        order = torch.cat(members).argsort()
        activity = torch.cat([piece.activity for piece in pieces])[order]
        sample = torch.cat([samples[piece.sample] for samples, piece in zip(members, pieces, strict=True)])
        rights: dict[int, Tensor] = {}
        blocks = []
        for number, block in enumerate(first.blocks):
            if id(block.right) not in rights:
                rights[id(block.right)] = torch.cat([piece.blocks[number].right for piece in pieces])
            blocks.append(Block(block.name, torch.cat([piece.blocks[number].left for piece in pieces]), rights[id(block.right)]))
        tokens = torch.cat([piece.tokens for piece in pieces])[order]
        return UnitGradients(first.layer, first.expert, sample, tuple(blocks), activity, tokens)


def _real(batch: Batch) -> Tensor:
    """Return (N,) bool, False for padding and the last token of each sample."""
    lengths = torch.tensor(batch.lengths, device=batch.token_ids.device) - 1
    return (torch.arange(batch.token_ids.shape[1] - 1, device=lengths.device) < lengths[:, None]).flatten()


@dataclass(frozen=True, slots=True)
class _Passed:
    """One pass through a linear map. given: its input; output: the target of its output gradient."""

    given: Tensor
    output: GradientEdge


@dataclass(frozen=True, slots=True)
class _Routed:
    """One pass through a layer's experts. Rows are sorted by expert, then by token.

    hidden: (N, d), the input shared by all experts; tokens: (R,), the row of ``hidden`` for each routed row; counts: rows per expert;
    activations: (R, F), the input of down; preactivation, output: targets of the gradients of (R, 2F), gate and up together, and of (R, d).
    """

    hidden: Tensor
    tokens: Tensor
    counts: Sequence[int]
    activations: Tensor
    preactivation: GradientEdge
    output: GradientEdge


@dataclass(eq=False, slots=True)
class _Watched:
    """The units of a copy of a layer, whose passes hooks note. real: (N,), whether each token of the micro-batch is real."""

    units: Sequence[FFN]
    mask: Mask | None
    real: Tensor = field(default_factory=lambda: torch.empty(0))
    passed: dict[nn.Module, _Passed] = field(default_factory=dict)
    routed: dict[nn.Module, _Routed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for unit in self.units:
            if self.mask is not None and unit.experts is None:
                self._put_mask(unit, self.mask)
        for module in dict.fromkeys(linear.module for unit in self.units for linear in unit.maps.values()):
            module.register_forward_hook(self._note)
        for experts in dict.fromkeys(unit.experts for unit in self.units if unit.experts is not None):
            cast(Any, experts).forward = partial(self._run_experts, cast(Any, experts))

    def clear(self, real: Tensor) -> None:
        """Begin another micro-batch."""
        self.real, self.passed, self.routed = real, {}, {}

    def targets(self) -> list[GradientEdge]:
        """Return where gradients are needed, after a forward pass."""
        return [each.output for each in self.passed.values()] + [
            edge for each in self.routed.values() for edge in (each.preactivation, each.output)
        ]

    def units_of(self, gradients: Sequence[Tensor | None], batch: Batch) -> Iterator[UnitGradients]:
        """Yield each unit, from the gradients at `targets`."""
        dense = dict(zip(self.passed, gradients, strict=False))
        rest = cast(Sequence[Tensor], gradients[len(dense) :])
        routed = {module: (before, after) for module, before, after in zip(self.routed, rest[::2], rest[1::2], strict=True)}
        for unit in self.units:
            if unit.experts is not None:
                yield self._expert(unit, *routed[unit.experts], batch)
            else:
                yield self._dense(unit, dense, batch)

    def _note(self, module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        if torch.is_grad_enabled():
            self.passed[module] = _Passed(given[0].detach(), get_gradient_edge(output))

    def _put_mask(self, ffn: FFN, mask: Mask) -> None:
        outputs: dict[nn.Module, Tensor] = {}

        def apply(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
            def part(name: str) -> Tensor:
                linear = ffn.maps[name]
                whole = outputs[linear.module]
                return whole if linear.rows is None else whole[..., linear.rows]

            gate = ffn.activation(part("gate")) if ffn.gated else None
            product = mask(gate, part("up"), given[0], self.real.view(given[0].shape[:-1]))
            outputs.clear()
            return (product, *given[1:])

        for name in ("gate", "up"):
            if name in ffn.maps:
                ffn.maps[name].module.register_forward_hook(lambda module, given, output: outputs.update({module: output}))
        ffn.maps["down"].module.register_forward_pre_hook(apply)

    def _run_experts(self, experts: Any, hidden: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        """Run the experts as transformers does, up to the order of additions. indices, weights: (N, k)."""
        chosen = indices.flatten()
        order = torch.argsort(chosen, stable=True)
        tokens = order // indices.shape[1]
        counts = torch.bincount(chosen, minlength=experts.num_experts).tolist()
        preactivation = _grouped_linear(hidden[tokens], counts, experts, "gate_up_proj")
        activations = experts._apply_gate(preactivation)
        if self.mask is not None:
            gate, up = (preactivation[:, part] for part in gate_and_up(experts))
            activations = self.mask(expert_activation(experts)(gate), up, activations, self.real[tokens])
        output = _grouped_linear(activations, counts, experts, "down_proj")
        if torch.is_grad_enabled():
            edges = get_gradient_edge(preactivation), get_gradient_edge(output)
            self.routed[experts] = _Routed(hidden.detach(), tokens, counts, activations.detach(), *edges)
        weighted = output * weights.flatten()[order, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device=order.device)
        return weighted[back].view(*indices.shape, -1).sum(1).to(hidden.dtype)

    def _dense(self, unit: FFN, found: Mapping[nn.Module, Tensor | None], batch: Batch) -> UnitGradients:
        """Return the gradients of an FFN that receives every token."""
        inputs = {linear.module: self.passed[linear.module].given.flatten(0, -2) for linear in unit.maps.values()}
        gradients = {module: cast(Tensor, found[module]).flatten(0, -2) for module in inputs}
        # A token whose output has a zero gradient also has a zero gradient before the activation, so it contributes to no product.
        rows = _with_gradient(gradients[unit.maps["down"].module], self.real)
        selected: dict[tuple[int, torch.Size], Tensor] = {}
        blocks = []
        for name, linear in unit.maps.items():
            whole = inputs[linear.module]
            given = selected.setdefault((whole.data_ptr(), whole.shape), _rows(whole, rows))
            gradient = _rows(gradients[linear.module], rows)
            gradient = gradient if linear.rows is None else gradient[:, linear.rows]
            blocks.append(Block(name, given, gradient) if name == "down" else Block(name, gradient, given))
        width = batch.token_ids.shape[1] - 1
        lengths = [length - 1 for length in batch.lengths]
        activity = _activity(inputs[unit.maps["down"].module], width, lengths)
        return UnitGradients(unit.layer, None, rows // width, tuple(blocks), activity, torch.tensor(lengths, device=rows.device))

    def _expert(self, unit: FFN, preactivation: Tensor, output: Tensor, batch: Batch) -> UnitGradients:
        """Return the gradients of an expert. preactivation, output: (R, 2F), (R, d), of all experts of its layer."""
        routed = self.routed[cast(nn.Module, unit.experts)]
        first = sum(routed.counts[: unit.expert])
        own = slice(first, first + routed.counts[cast(int, unit.expert)])
        tokens, samples, width = routed.tokens[own], len(batch.lengths), batch.token_ids.shape[1] - 1
        real = self.real[tokens]
        magnitudes = routed.activations[own][real].abs().to(torch.promote_types(output.dtype, torch.float32))
        sample = tokens[real] // width
        activity = magnitudes.new_zeros(samples, unit.width).index_add_(0, sample, magnitudes)
        rows = _with_gradient(output[own], real)
        gate, up = (preactivation[own][rows][:, part] for part in gate_and_up(cast(nn.Module, unit.experts)))
        given = routed.hidden[tokens[rows]]
        blocks = (Block("gate", gate, given), Block("up", up, given), Block("down", routed.activations[own][rows], output[own][rows]))
        arrived = torch.bincount(sample, minlength=samples)
        return UnitGradients(unit.layer, unit.expert, tokens[rows] // width, blocks, activity, arrived)


def gate_and_up(experts: nn.Module) -> tuple[slice, slice]:
    """Split the joint output of gate and up: halves, or interleaved columns."""
    if not experts.is_concatenated:
        return slice(0, None, 2), slice(1, None, 2)
    weight = cast(Tensor, experts.gate_up_proj)
    width = weight.shape[2 if experts.is_transposed else 1] // 2
    return slice(0, width), slice(width, None)


def _grouped_linear(rows: Tensor, counts: Sequence[int], experts: Any, name: str) -> Tensor:
    """Apply each expert's slice of the parameter ``name`` to its rows."""
    weight, bias = getattr(experts, name), getattr(experts, f"{name}_bias", None)
    pieces = []
    for expert, piece in enumerate(torch.split(rows, list(counts))):
        if counts[expert]:
            matrix = weight[expert] if experts.is_transposed else weight[expert].T
            pieces.append(piece @ matrix if bias is None else torch.addmm(bias[expert], piece, matrix))
    return torch.cat(pieces)


def _with_gradient(gradient: Tensor, real: Tensor) -> Tensor:
    """Return the indices of rows of ``gradient`` that are nonzero; NaN counts as nonzero."""
    return (((gradient.amax(1) != 0) | (gradient.amin(1) != 0)) & real).nonzero().flatten()  # `any` takes five times as long


def _rows(tensor: Tensor, rows: Tensor) -> Tensor:
    return tensor if len(rows) == len(tensor) else tensor[rows]


def _activity(activations: Tensor, width: int, lengths: Sequence[int]) -> Tensor:
    """Sum the magnitudes of activations (N, F) over each sample's tokens; returns (S, F)."""
    kind = torch.promote_types(activations.dtype, torch.float32)
    samples = torch.split(activations, width)
    return torch.stack([each[:length].abs().sum(0, dtype=kind) for each, length in zip(samples, lengths, strict=True)])
