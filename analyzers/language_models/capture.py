"""What a backward pass brings to every neuron: inputs, activations and gradients, layer by layer.

The model runs once over a batch. Its layers are cut apart: each starts from a leaf of its own, and the backward pass goes from leaf to
leaf, the last layer first. So it is a plain generator, which can be left between layers; what a layer held is free when the next begins;
and with checkpointing a layer is simply run again from its leaf, in evaluation mode as before, for a few samples at a time.

Axes: S samples, L tokens with padding, N = S L, T tokens that have a gradient, F units, d width.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from analyzers.language_models.allocator import give_back, given_back
from analyzers.language_models.experts import Mask
from analyzers.language_models.failures import running
from analyzers.language_models.ffn import FFN, decoder_layers
from analyzers.language_models.grouping import groups
from analyzers.language_models.head import losses_and_gradient
from analyzers.language_models.layer_capture import Brought, LayerCapture, Places, capture_dense, capture_experts, merged
from analyzers.language_models.not_finite import not_finite
from analyzers.language_models.plain_layer import Kept, PlainLayer
from analyzers.language_models.prompts import Batch
from analyzers.language_models.recording import Recording, Units

Loss = Literal["mean", "sum"]
AtLayer = Callable[[int], None]
_NO_MASKS: Mapping[int, Mask] = {}
PART_TOKENS = 1024
"""Tokens, with padding, that go through a layer together under checkpointing (at least one sample's): enough for full speed."""

# Bytes from which on a block that is freed under checkpointing is given back at once.
_BLOCKS, _PLAIN_BLOCKS = 8 << 20, 4 << 20


@dataclass(eq=False, slots=True)
class _Stage:
    """One layer of the pass, by autograd. came: what came to it, with the way back; gone: what went on from it, cut off.

    leaf: what came, cut off; output: its result, None with checkpointing, where ``again`` computes it.
    """

    came: Tensor
    gone: Tensor
    leaf: Tensor
    output: Tensor | None
    again: Callable[[], Tensor]

    def backward(self, recording: Recording, layer: int, gradient: Tensor, further: bool) -> Brought:
        """From the gradient of what went on; ``further``: to what came. Uses the stage up."""
        if self.output is None:
            with torch.enable_grad(), recording.attached((layer,)), running():
                self.output = self.again()
        passed, routed = recording.take(layer)
        edges: list[GradientEdge] = [each.output for each in passed.values()]
        edges += [edge for each in routed.values() for edge in (each.preactivation, each.output)]
        # What came to the first layer is of no interest: the way there ends at its units.
        wanted = [*edges, self.leaf] if further else edges
        arrived = list(torch.autograd.grad(self.output, cast(Any, wanted), gradient)) if wanted else []
        came = arrived.pop() if further else None
        of_experts = arrived[len(passed) :]
        through = zip(routed.items(), of_experts[::2], of_experts[1::2], strict=True)
        return Brought(
            came,
            {module: each.given for module, each in passed.items()},
            dict(zip(passed, arrived, strict=False)),
            routed={module: (each, before, after) for (module, each), before, after in through},
        )


@dataclass(eq=False, slots=True)
class _PlainStage:
    """One layer of the pass, by hand. kept: None with checkpointing, where it is run again."""

    came: Tensor
    gone: Tensor
    layer: PlainLayer
    turns: tuple[Tensor, Tensor]
    kept: Kept | None
    lengths: Sequence[int]

    def backward(self, recording: Recording, layer: int, gradient: Tensor, further: bool) -> Brought:
        """As `_Stage`."""
        with torch.no_grad():
            return self.layer.backward(self.came, self.turns, self.kept, self.lengths, gradient, further)


class Run:
    """A forward pass whose backward pass is still to come; made by `run`. ``losses`` (S,) is what is differentiated."""

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        recording: Recording,
        plain: Sequence[PlainLayer | None],
        checkpointing: bool,
        loss: Loss,
        at_layer: AtLayer,
    ) -> None:
        self._recording = recording
        self._at_layer = at_layer
        self._places = Places(batch)
        self._stages: list[_Stage | _PlainStage] = []
        self.losses, self._gradient = self._forward(model, batch, plain, checkpointing, loss)

    def _forward(
        self, model: nn.Module, batch: Batch, plain: Sequence[PlainLayer | None], checkpointing: bool, loss: Loss
    ) -> tuple[Tensor, Tensor]:
        """The losses, and the gradient of their sum that comes to the last layer."""
        recording = self._recording
        decoder = cast(Any, model).get_decoder()
        layers = decoder_layers(model)
        with torch.enable_grad(), ExitStack() as stack:
            stack.enter_context(recording.attached(range(len(layers))))
            for layer, same in zip(layers, plain, strict=True):
                stack.enter_context(self._cut(layer, checkpointing, same))
            # No attention mask: nothing real looks at padding on the right, and a row of which all is masked can become NaN.
            # The last column predicts nothing.
            with running():
                final = decoder(input_ids=batch.token_ids[:, :-1], use_cache=False).last_hidden_state
        losses, gradient = losses_and_gradient(model, final, batch.labels, loss)
        if not torch.isfinite(losses).all():
            raise not_finite("The model's losses", final.dtype)
        (arrived,) = torch.autograd.grad(final, self._stages[-1].gone, gradient)
        return losses, arrived

    def __iter__(self) -> Iterator[LayerCapture]:
        """Backward, the last layer first: one capture for each unit, in their order within a layer. Can be done once."""
        while self._stages:
            yield from self._backward()

    def _backward(self) -> Iterator[LayerCapture]:
        """Through the last of the stages that are left."""
        stage = self._stages.pop()
        layer = len(self._stages)
        brought = stage.backward(self._recording, layer, self._gradient, bool(self._stages))
        if brought.gradient is not None:
            self._gradient = brought.gradient
            if stage.came is not self._stages[-1].gone:
                (self._gradient,) = torch.autograd.grad(stage.came, self._stages[-1].gone, self._gradient)
        del stage
        units = self._recording.layers.get(layer, ())
        for module, routed in brought.routed.items():
            members = [unit for unit in units if isinstance(unit, FFN) and unit.experts is module]
            yield from capture_experts(members, *routed, self._places)
        dense = [capture_dense(unit, brought, self._places) for unit in units if unit.maps]
        del brought
        while dense:  # each is the caller's alone, who may free what is in it
            yield dense.pop(0)

    @contextmanager
    def _cut(self, layer: nn.Module, checkpointing: bool, plain: PlainLayer | None) -> Iterator[None]:
        """Inside, the layer starts from a leaf of its own and gives one to what follows. plain: the layer itself, where it is."""
        forward, own = layer.forward, layer.__dict__.get("forward")

        def cut(*given: Any, **named: Any) -> Any:
            self._at_layer(len(self._stages))
            came: Tensor = given[0] if given else named["hidden_states"]
            if plain is not None and plain.takes(named):
                turns = named["position_embeddings"]
                with torch.no_grad():
                    output, kept = plain.forward(came, turns, not checkpointing)
                self._stages.append(_PlainStage(came, output.requires_grad_(), plain, turns, kept, self._places.lengths))
                return output
            leaf = came.detach().requires_grad_()

            def result() -> Any:
                return forward(leaf, *given[1:], **named) if given else forward(**{**named, "hidden_states": leaf})

            def again() -> Tensor:
                return _first(result())

            with torch.set_grad_enabled(not checkpointing):
                results = result()
            output = _first(results)
            gone = output.detach().requires_grad_()
            self._stages.append(_Stage(came, gone, leaf, None if checkpointing else output, again))
            return (gone, *results[1:]) if isinstance(results, tuple) else gone

        layer.forward = cut
        try:
            yield
        finally:
            if own is None:
                del layer.forward
            else:
                layer.forward = own


class PartedRun:
    """`Run`s of groups of a batch, which go through each layer one after the other; what they capture there is put together.

    With checkpointing, what a layer holds for its backward pass is held for one group alone. Captures and losses are those of the whole
    batch. groups: the numbers of each group's samples, which go up.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        groups: Sequence[Sequence[int]],
        units: Sequence[Units],
        plain: Sequence[PlainLayer | None],
        checkpointing: bool,
        loss: Loss,
        masks: Mapping[int, Mask],
        at_layer: AtLayer,
    ) -> None:
        self._groups = groups
        self._sparing = checkpointing
        # Plain layers hold little as they are, and in blocks that differ in size from what they need in passing.
        self._least = _PLAIN_BLOCKS if all(plain) else _BLOCKS
        self._parts: list[Run] = []
        with self._given_back():
            for group in groups:
                part = batch.part(group)
                placed = {layer: _placed(mask, group, part, batch) for layer, mask in masks.items()}
                of_all = _of_all(at_layer, len(self._parts), len(groups), len(plain))
                self._parts.append(Run(model, part, Recording(units, placed), plain, checkpointing, loss, of_all))
        order = torch.tensor([sample for group in groups for sample in group]).argsort()
        losses = torch.cat([part.losses for part in self._parts])
        self.losses = losses[order.to(losses.device)]

    def __iter__(self) -> Iterator[LayerCapture]:
        """Backward, as `Run`."""
        parts = [iter(part) for part in self._parts]
        before: int | None = None
        with self._given_back():
            while found := [capture for part in parts if (capture := next(part, None)) is not None]:
                layer = found[0].layer
                if self._sparing and layer != before and len(parts) > 1:
                    give_back()  # what the groups needed for their way through the layer; what the caller needs, the next one uses again
                    before = layer
                yield merged(found, self._groups)

    def _given_back(self) -> AbstractContextManager[None]:
        return given_back(self._least) if self._sparing else nullcontext()


def _groups(model: nn.Module, batch: Batch, most: int | None) -> list[list[int]]:
    """Which samples run together. most: tokens of a group, with padding (at least one sample's)."""
    every = groups(model, batch.lengths, batch.token_ids.device.type)
    if most is None:
        return every
    found = []
    for group in every:
        step = max(1, most // max(1, max(batch.lengths[sample] for sample in group) - 1))
        found += [group[first : first + step] for first in range(0, len(group), step)]
    return found


def _plain_layers(model: nn.Module, recording: Recording, by_autograd: Collection[int]) -> list[PlainLayer | None]:
    """Of each layer whether it is run by hand: one that is plain, and of which nothing but an FFN as it is is recorded."""
    by_hand = (number not in by_autograd and recording.only_ffn(number) for number in count())
    return [PlainLayer.of(layer) if chosen else None for layer, chosen in zip(decoder_layers(model), by_hand, strict=False)]


def _of_all(at_layer: AtLayer, part: int, parts: int, layers: int) -> AtLayer:
    """Of the layers of one part, in layers of the whole."""
    return lambda layer: at_layer((part * layers + layer) // parts)


def _placed(mask: Mask, group: Sequence[int], part: Batch, batch: Batch) -> Mask:
    """The mask of a batch, called with rows of a part of it: tokens are numbered as in the batch. group: the samples of the part."""
    here, there, samples = part.token_ids.shape[1] - 1, batch.token_ids.shape[1] - 1, torch.tensor(group)

    def placed(gate: Tensor | None, up: Tensor, product: Tensor, tokens: Tensor | None) -> Tensor:
        if tokens is None:
            tokens = torch.arange(up.numel() // up.shape[-1], device=up.device)
        return mask(gate, up, product, samples.to(tokens.device)[tokens // here] * there + tokens % here)

    return placed


def run(
    model: nn.Module,
    batch: Batch,
    units: Sequence[Units],
    *,
    checkpointing: bool = False,
    loss: Loss = "mean",
    masks: Mapping[int, Mask] = _NO_MASKS,
    by_autograd: Collection[int] = (),
    at_layer: AtLayer = lambda behind: None,
) -> Run | PartedRun:
    """Run a frozen causal language model over a batch; iterate the result for what the backward pass brings to each of ``units``.

    The loss is the sum over samples of the "mean" or the "sum" of the cross-entropy of their answer tokens. Padding enters nothing, and
    there is little: samples of about the same length run together (`grouping`).
    units: of `ffn_layers` or `attention_projections`. checkpointing: keep only what enters each layer, and run it again in its turn.
    masks: by layer, of its FFNs: called with gate, up and their product, (.., F) each, and returns what is to enter down; gate after its
    activation, up what it is multiplied with, as the map gives it. Without a gate it is None, and product the activation of up. At last
    comes None: rows are tokens in order; or the token of each row, numbered in the batch: for all experts of a layer together, and where
    samples do not all run together. With checkpointing it is called a second time. by_autograd: layers that are not to be run by hand
    though they could be, as none with a mask is: what two runs bring then differs by their masks alone. at_layer: called before each
    layer of the forward pass with how many of them are behind; what it raises ends the run.
    Raises InvalidCheckpoint if a loss is not finite.
    """
    recording = Recording(units, masks)
    plain = _plain_layers(model, recording, by_autograd)
    together = _groups(model, batch, PART_TOKENS if checkpointing and not all(plain) else None)
    if len(together) == 1 and not checkpointing:
        return Run(model, batch, recording, plain, False, loss, at_layer)
    return PartedRun(model, batch, together, units, plain, checkpointing, loss, masks, at_layer)


def _first(results: Any) -> Tensor:
    return cast(Tensor, results[0] if isinstance(results, tuple) else results)
