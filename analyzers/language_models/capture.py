"""Captures inputs, activations and gradients of every neuron in one forward and one backward pass, layer by layer.

The autograd graph is cut at the input of each decoder layer, and the backward pass runs one layer at a time, from the last to the first.
The pass is therefore a plain generator that can be stopped between layers, and each layer's memory is freed before the next one starts.
With checkpointing, only the layer inputs are saved, and each layer is recomputed (in evaluation mode, as in the forward pass) for a few
samples at a time.

Axes: S samples, L tokens including padding, N = S L, T tokens that have a gradient, F units, d width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from analyzers.language_models.ffn import FFN, decoder_layers
from analyzers.language_models.layer_capture import LayerCapture, LayerGradients, Places, capture_dense, capture_experts, merged
from analyzers.language_models.layer_hooks import Mask, Recording, Units, replaced_forward
from analyzers.language_models.length_groups import length_groups
from analyzers.language_models.lm_head import losses_and_gradient
from analyzers.language_models.model_failures import not_finite, running
from analyzers.language_models.prompts import Batch

Loss = Literal["mean", "sum"]
AtLayer = Callable[[int], None]
_NO_MASKS: Mapping[int, Mask] = {}
PART_TOKENS = 1024
"""Tokens, including padding, per recomputation of a layer under checkpointing (at least one sample's): enough for full speed."""


@dataclass(eq=False, slots=True)
class _Stage:
    """One layer of the forward pass.

    before: the layer's input, attached to the preceding graph; leaf: the same tensor detached, the start of the layer's own graph.
    after: the detached output, the next layer's input; output: the output with its graph, None with checkpointing.
    again: recomputes the layer from ``leaf``.
    """

    before: Tensor
    leaf: Tensor
    after: Tensor
    output: Tensor | None
    again: Callable[[], Tensor]

    def backward(self, recording: Recording, layer: int, gradient: Tensor, further: bool) -> LayerGradients:
        """Map the gradient of ``after`` to the gradients of the layer's units and, if ``further``, of its input. Consumes the stage."""
        if self.output is None:
            with torch.enable_grad(), recording.attached((layer,)), running():
                self.output = self.again()
        passed, routed = recording.take(layer)
        edges: list[GradientEdge] = [each.output for each in passed.values()]
        edges += [edge for each in routed.values() for edge in (each.preactivation, each.output)]
        # The gradient of the first layer's input is not needed: the backward pass stops at its units.
        wanted = [*edges, self.leaf] if further else edges
        gradients = list(torch.autograd.grad(self.output, cast(Any, wanted), gradient)) if wanted else []
        of_input = gradients.pop() if further else None
        of_experts = gradients[len(passed) :]
        experts = zip(routed.items(), of_experts[::2], of_experts[1::2], strict=True)
        return LayerGradients(
            of_input,
            {module: each.given for module, each in passed.items()},
            dict(zip(passed, gradients, strict=False)),
            {module: (each, preactivation, output) for (module, each), preactivation, output in experts},
        )


class _GroupRun:
    """The forward pass of one group of samples, whose backward pass is pending. losses: (S,), those that are differentiated."""

    def __init__(self, model: nn.Module, batch: Batch, recording: Recording, checkpointing: bool, loss: Loss, at_layer: AtLayer) -> None:
        self._recording = recording
        self._at_layer = at_layer
        self._places = Places(batch)
        self._stages: list[_Stage] = []
        self.losses, self._gradient = self._forward(model, batch, checkpointing, loss)

    def _forward(self, model: nn.Module, batch: Batch, checkpointing: bool, loss: Loss) -> tuple[Tensor, Tensor]:
        """Compute the losses, and the gradient of their sum with respect to the last layer's output."""
        recording = self._recording
        decoder = cast(Any, model).get_decoder()
        layers = decoder_layers(model)
        with torch.enable_grad(), ExitStack() as stack:
            stack.enter_context(recording.attached(range(len(layers))))
            for layer in layers:
                stack.enter_context(self._cut(layer, checkpointing))
            # No attention mask: no real token attends to right padding, and a fully masked row can become NaN.
            # The last token predicts nothing.
            with running():
                final = decoder(input_ids=batch.token_ids[:, :-1], use_cache=False).last_hidden_state
        losses, gradient = losses_and_gradient(model, final, batch.labels, loss)
        if not torch.isfinite(losses).all():
            raise not_finite("The model's losses", final.dtype)
        (of_last,) = torch.autograd.grad(final, self._stages[-1].after, gradient)
        return losses, of_last

    def __iter__(self) -> Iterator[LayerCapture]:
        """Run the backward pass, last layer first: yields one capture per unit, in unit order within a layer. Can be iterated once."""
        while self._stages:
            yield from self._backward()

    def _backward(self) -> Iterator[LayerCapture]:
        """Run the backward pass through the last remaining stage."""
        stage = self._stages.pop()
        layer = len(self._stages)
        gradients = stage.backward(self._recording, layer, self._gradient, bool(self._stages))
        if gradients.of_input is not None:
            self._gradient = gradients.of_input
            if stage.before is not self._stages[-1].after:
                (self._gradient,) = torch.autograd.grad(stage.before, self._stages[-1].after, self._gradient)
        del stage
        units = self._recording.layers.get(layer, ())
        for module, routed in gradients.routed.items():
            members = [unit for unit in units if isinstance(unit, FFN) and unit.experts is module]
            yield from capture_experts(members, *routed, self._places)
        dense = [capture_dense(unit, gradients, self._places) for unit in units if unit.maps]
        del gradients
        while dense:  # the caller then holds the only reference to a capture, and can free its tensors
            yield dense.pop(0)

    def _cut(self, layer: nn.Module, checkpointing: bool) -> AbstractContextManager[None]:
        """Context manager that detaches the layer's input and output from the surrounding graph."""
        forward = layer.forward

        def cut(*given: Any, **named: Any) -> Any:
            self._at_layer(len(self._stages))
            before: Tensor = given[0] if given else named["hidden_states"]
            leaf = before.detach().requires_grad_()

            def result() -> Any:
                return forward(leaf, *given[1:], **named) if given else forward(**{**named, "hidden_states": leaf})

            def again() -> Tensor:
                return _first(result())

            with torch.set_grad_enabled(not checkpointing):
                results = result()
            output = _first(results)
            after = output.detach().requires_grad_()
            self._stages.append(_Stage(before, leaf, after, None if checkpointing else output, again))
            return (after, *results[1:]) if isinstance(results, tuple) else after

        return replaced_forward(layer, cut)


class Run:
    """A forward pass whose backward pass is pending: groups of samples pass each layer in turn, and their captures are merged.

    With checkpointing, only one group's activations of one layer are in memory at a time. Captures and losses are those of the whole batch.
    groups: indices of each group's samples, in ascending order.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        groups: Sequence[Sequence[int]],
        units: Sequence[Units],
        checkpointing: bool,
        loss: Loss,
        masks: Mapping[int, Mask],
        at_layer: AtLayer,
    ) -> None:
        self._groups = groups
        self._parts: list[_GroupRun] = []
        layers = len(decoder_layers(model))
        for group in groups:
            part = batch.part(group)
            of_group = {layer: _mask_of_group(mask, group, part, batch) for layer, mask in masks.items()}
            done = len(self._parts) * layers  # layers of the groups before this one

            def of_all(layer: int, done: int = done) -> None:
                at_layer((done + layer) // len(groups))

            self._parts.append(_GroupRun(model, part, Recording(units, of_group), checkpointing, loss, of_all))
        order = torch.tensor([sample for group in groups for sample in group]).argsort()
        losses = torch.cat([part.losses for part in self._parts])
        self.losses = losses[order.to(losses.device)]

    def __iter__(self) -> Iterator[LayerCapture]:
        """Run the backward pass, last layer first: yields one capture per unit, in unit order within a layer. Can be iterated once."""
        parts = [iter(part) for part in self._parts]
        while captures := [capture for part in parts if (capture := next(part, None)) is not None]:
            yield merged(captures, self._groups)


def _groups(model: nn.Module, batch: Batch, most: int | None) -> list[list[int]]:
    """Split samples into groups that run together. most: tokens per group, including padding (at least one sample's)."""
    every = length_groups(model, batch.lengths, batch.token_ids.device.type)
    if most is None:
        return every
    smaller = []
    for group in every:
        step = max(1, most // max(1, max(batch.lengths[sample] for sample in group) - 1))
        smaller += [group[first : first + step] for first in range(0, len(group), step)]
    return smaller


def _mask_of_group(mask: Mask, group: Sequence[int], part: Batch, batch: Batch) -> Mask:
    """Restrict a batch's mask to the rows of one part: tokens keep their indices in the batch. group: the samples of the part."""
    part_width, batch_width, samples = part.token_ids.shape[1] - 1, batch.token_ids.shape[1] - 1, torch.tensor(group)

    def of_group(gate: Tensor | None, up: Tensor, product: Tensor, tokens: Tensor) -> Tensor:
        return mask(gate, up, product, samples.to(tokens.device)[tokens // part_width] * batch_width + tokens % part_width)

    return of_group


def run(
    model: nn.Module,
    batch: Batch,
    units: Sequence[Units],
    *,
    checkpointing: bool = False,
    whole: bool = False,
    loss: Loss = "mean",
    masks: Mapping[int, Mask] = _NO_MASKS,
    at_layer: AtLayer = lambda layer: None,
) -> Run:
    """Run a frozen causal language model on a batch; iterate over the result for the inputs and gradients of each of ``units``.

    The loss is the sum over samples of the "mean" or "sum" of the cross-entropy over their answer tokens. Padding does not affect any
    result, and is limited by grouping samples of similar length (`length_groups`).
    units: from `ffn_layers` or `attention_projections`. checkpointing: save only the layer inputs and recompute each layer in the backward
    pass, for a few samples at a time or, if ``whole``, for all that run together: the same bits as without.
    masks: per layer, for its FFNs: called with gate, up and their product, (.., F) each; returns the input of down. gate is taken after its
    activation, up is the output of its linear map. Without a gate, gate is None and product is the activation of up. The last argument is
    each row's token index in the batch, for all experts of a layer together. With checkpointing a mask is called twice.
    at_layer: called before each layer of the forward pass with the number of layers done; an exception it raises aborts the run.
    Raises InvalidCheckpoint if a loss is not finite.
    """
    together = _groups(model, batch, PART_TOKENS if checkpointing and not whole else None)
    return Run(model, batch, together, units, checkpointing, loss, masks, at_layer)


def _first(results: Any) -> Tensor:
    return cast(Tensor, results[0] if isinstance(results, tuple) else results)
