"""One run of a model, forward and backward, stage by stage: what comes out at every boundary is handed on before the next stage begins.

Between stages the model is as it was: weights, forwards and settings of torch are in place only while a stage computes. A layer runs once
forward and once more on the way back, from what entered it, so that no more than one layer's activations and cast weights are held; the
two runs give the same bits. The last layer is the first on the way back: its activations are kept instead, and those of the layers before
it as far as they are small (`kept`). The decoder prepares masks and positions itself: it is run around layers that only note what they are
given.

Axes: S sequences, L predicted tokens of each, d hidden width, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from analyzers.language_models.ffn import text_config
from analyzers.language_models.head import LogitMap
from analyzers.precision_variants.anatomy import Anatomy
from analyzers.precision_variants.arithmetic import arithmetic
from analyzers.precision_variants.headroom import Peaks
from analyzers.precision_variants.kept import Graph, KeptGraphs
from analyzers.precision_variants.losses import log_probabilities, logits_gradient
from analyzers.precision_variants.parts import Parts
from analyzers.precision_variants.report import Kind
from analyzers.precision_variants.variants import Settings
from analyzers.precision_variants.weights import STORED, Leaf, Rounding, Weights, in_place

_PASSED_ON = (nn.Dropout, nn.Identity)


@dataclass(frozen=True, eq=False, slots=True)
class Captured:
    """One tensor of a run, as `report.TensorError` names them. Gradients are those of the loss times the scale of the backward pass."""

    kind: Kind
    name: str
    layer: int | None
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Way:
    """How to run: settings, the attention implementation, what becomes of the weights before, and whether to look inside layers."""

    settings: Settings
    attention: str
    rounding: Rounding = STORED
    inside: bool = False


@dataclass(frozen=True, slots=True)
class _Call:
    """What a layer is given beside the hidden states. named: whether those come by name."""

    given: tuple[Any, ...]
    others: Mapping[str, Any]
    named: bool


class Run:
    """A run over ``token_ids`` (S, L + 1). Take all of `forward`, then of `backward`, which can be repeated.

    logits: (S, L, V); log_p: (S, L) fp32, of the chosen tokens; forward_peaks, weight_peaks, backward_peaks (of the last backward pass).
    """

    def __init__(self, anatomy: Anatomy, token_ids: Tensor, way: Way) -> None:
        self.anatomy = anatomy
        self.way = way
        self.forward_peaks, self.backward_peaks, self.weight_peaks = Peaks(), Peaks(), Peaks()
        self._given, self._targets = token_ids[:, :-1], token_ids[:, 1:]
        self._parts = Parts(anatomy, way.settings, token_ids.device.type)
        self._weights = Weights(anatomy, way.settings, way.rounding)
        self._hidden: list[Tensor] = []
        self._calls: list[_Call] = []
        self._graphs = KeptGraphs()
        self.logits: Tensor
        self.log_p: Tensor

    def forward(self) -> Iterator[Captured]:
        """Embeddings, layers (and what is inside them), logits."""
        last = len(self.anatomy.layers)
        with self._stage(), torch.enable_grad():
            self._embedding_leaves = self._leaves(self.anatomy.outside, False)
            self._entering = self._decoder(self._embedding_leaves, None)
        yield self._kept("embeddings", self._entering.detach())
        for layer in range(last):
            inside: list[Captured] = []
            with self._stage():
                self._graphs.make_room()
                graph = self._ran(layer, self._note(layer, inside))
                for leaf in graph.leaves:
                    self.weight_peaks.add(layer, leaf.tensor, leaf.name)
                output = graph.output.detach()
                self._graphs.keep(graph)
                del graph
            yield from inside
            del inside
            yield self._kept(f"layers.{layer}", output)
        with self._stage():
            with torch.no_grad():
                self._final = self._decoder(self._leaves(self.anatomy.outside, False), self._hidden[last])
            self._head_leaves = self._leaves([self.anatomy.head], False)
            with torch.enable_grad(), in_place(self._head_leaves):
                self._rows = self._final.detach().requires_grad_()
                with self._parts.autocast():
                    logits = self._parts.logits(self._rows)
                self.logits = LogitMap.of(self.anatomy.model)(logits)
            self._targets = self._targets.to(self.logits.device)
            self.log_p = log_probabilities(self.logits, self._targets)
        for leaf in self._embedding_leaves:
            self.weight_peaks.add(-1, leaf.tensor, leaf.name)
        for leaf in self._head_leaves:
            self.weight_peaks.add(last, leaf.tensor, leaf.name)
        self.forward_peaks.add(last, self._final, "final norm")
        self.forward_peaks.add(last, self.logits, "logits")
        yield Captured("logits", "logits", None, self.logits.detach())

    def backward(self, coefficients: Tensor, scale: float) -> Iterator[Captured]:
        """Gradients of scale times the loss, from the logits down to the embeddings. coefficients: (S, L), see `losses`."""
        self.backward_peaks = Peaks()
        last = len(self.anatomy.layers)
        with self._stage():
            gradient = logits_gradient(self.logits, self._targets, coefficients * scale)
            self.backward_peaks.add(last, gradient, "logits")
        yield Captured("logits_grad", "logits", None, gradient)
        with self._stage():
            wanted = [self._rows, *(leaf.tensor for leaf in self._head_leaves)]
            arrived, *of_head = _gradients(self.logits, wanted, gradient, again=True)
            held = {leaf.name: each for leaf, each in zip(self._head_leaves, of_head, strict=True)}
            self.backward_peaks.add(last, arrived, "final norm")
            leaves = self._leaves(self.anatomy.outside, False)
            with torch.enable_grad():
                hidden = self._hidden[last].detach().requires_grad_()
                final = self._decoder(leaves, hidden)
            gradient, *of_tail = _gradients(final, [hidden, *(leaf.tensor for leaf in leaves)], arrived)
            del final, arrived
            for leaf, each in zip(leaves, of_tail, strict=True):
                _add(held, leaf.name, each)
            del leaves, of_head, of_tail
        yield self._arrived(f"layers.{last - 1}", last - 1, gradient)
        for layer in reversed(range(last)):
            with self._stage():
                graph = self._graphs.take(layer) or self._ran(layer, None)
                leaves, edges = graph.leaves, graph.edges
                wanted = [graph.hidden, *(leaf.tensor for leaf in leaves)]
                every = _gradients(graph.output, [*wanted, *edges.values()], gradient)
                del graph
                gradient, of_leaves, of_edges = every[0], every[1 : len(wanted)], every[len(wanted) :]
                for name, each in zip(edges, of_edges, strict=True):
                    self.backward_peaks.add(layer, each, name)
                for leaf, each in zip(leaves, of_leaves, strict=True):
                    self.backward_peaks.add(layer, each, leaf.name)
                names = [leaf.name for leaf in leaves]
                del every, leaves, wanted
            if self.way.inside:
                yield from (Captured("inside_grad", name, layer, each) for name, each in zip(edges, of_edges, strict=True))
            yield from (Captured("parameter_grad", name, layer, each) for name, each in zip(names, of_leaves, strict=True))
            del of_leaves, of_edges
            yield self._arrived(f"layers.{layer - 1}" if layer else "embeddings", layer - 1, gradient)
        with self._stage():
            wanted = [leaf.tensor for leaf in self._embedding_leaves]
            for leaf, each in zip(self._embedding_leaves, _gradients(self._entering, wanted, gradient, again=True), strict=True):
                _add(held, leaf.name, each)
        for name, each in held.items():
            self.backward_peaks.add(-1, each, name)
            yield Captured("parameter_grad", name, None, each)

    @contextmanager
    def _stage(self) -> Iterator[None]:
        with arithmetic(self.way.settings, self._given.device.type), _attention(self.anatomy, self.way.attention):
            yield

    def _leaves(self, modules: Iterable[nn.Module], in_layer: bool) -> list[Leaf]:
        return self._weights.leaves(modules, in_layer)

    def _kept(self, name: str, hidden: Tensor) -> Captured:
        """What leaves a stage, for the way back."""
        layer = len(self._hidden) - 1
        self._hidden.append(hidden)
        self.forward_peaks.add(layer, hidden, name)
        return Captured("hidden", name, layer, hidden)

    def _arrived(self, name: str, layer: int, gradient: Tensor) -> Captured:
        self.backward_peaks.add(layer, gradient, name)
        return Captured("hidden_grad", name, layer, gradient)

    def _ran(self, layer: int, note: Callable[[str, Tensor], None] | None) -> Graph:
        """Run a layer for its gradients. note: is given what each of its modules computes."""
        edges: dict[str, GradientEdge] = {}

        def see(name: str, tensor: Tensor) -> None:
            if note is not None:
                note(name, tensor.detach())
            if tensor.requires_grad:
                edges[name] = get_gradient_edge(tensor)

        leaves = self._leaves(self.anatomy.inside[layer].values(), True)
        with torch.enable_grad(), self._watched(layer, see):
            hidden = self._hidden[layer].detach().requires_grad_()
            return Graph(layer, hidden, self._layer(layer, hidden, leaves), leaves, edges)

    def _layer(self, layer: int, hidden: Tensor, leaves: Sequence[Leaf]) -> Tensor:
        module, call, attention = self.anatomy.layers[layer], self._calls[layer], self.anatomy.attentions[layer]
        with in_place(leaves), self._parts.applied(self.anatomy.inside[layer].values(), attention), self._parts.autocast():
            hidden = self._parts.entering(hidden)
            given = call.given if call.named else (hidden, *call.given)
            named = {**call.others, "hidden_states": hidden} if call.named else call.others
            result = module(*given, **named)
            return self._parts.entering(cast(Tensor, result[0] if isinstance(result, tuple) else result))

    def _decoder(self, leaves: Sequence[Leaf], result: Tensor | None) -> Tensor:
        """What enters the layers; or, where there is a ``result`` of the last of them, what follows from it."""
        calls: list[_Call] = []
        entered: list[Tensor] = []
        with ExitStack() as stack:
            for layer, number in zip(self.anatomy.layers, self.anatomy.results, strict=True):
                stack.enter_context(_noted(layer, number, calls, entered, result if layer is self.anatomy.layers[-1] else None))
            stack.enter_context(in_place(leaves))
            stack.enter_context(self._parts.applied(self.anatomy.outside, None))
            stack.enter_context(self._parts.autocast())
            final = cast(Any, self.anatomy.decoder)(input_ids=self._given, use_cache=False).last_hidden_state
        if result is None:
            self._calls = calls
            return entered[0]
        return cast(Tensor, final)

    def _note(self, layer: int, inside: list[Captured]) -> Callable[[str, Tensor], None]:
        def note(name: str, tensor: Tensor) -> None:
            self.forward_peaks.add(layer, tensor, name)
            if self.way.inside:
                inside.append(Captured("inside", name, layer, tensor.clone()))  # what follows may write into it

        return note

    @contextmanager
    def _watched(self, layer: int, see: Callable[[str, Tensor], None]) -> Iterator[None]:
        """Inside, ``see`` is called with what each module of the layer that computes something gives."""

        def hook(name: str) -> Callable[..., None]:
            def seen(module: nn.Module, given: Any, result: Any) -> None:
                first = result[0] if isinstance(result, tuple) else result
                if isinstance(first, Tensor) and first.is_floating_point():
                    see(name, first)

            return seen

        with ExitStack() as stack:
            for name, module in self.anatomy.inside[layer].items():
                computes = bool(module._parameters) or not next(module.children(), None)
                if name and computes and not isinstance(module, _PASSED_ON):
                    stack.callback(module.register_forward_hook(hook(name)).remove)
            yield


def _gradients(output: Tensor, wanted: Sequence[Any], gradient: Tensor, again: bool = False) -> list[Tensor]:
    """Of what is wanted; zeros where nothing depends on it, a single one for an edge of the graph. again: it is gone once more."""
    found = torch.autograd.grad(output, cast(Any, wanted), gradient.to(output.device, output.dtype), retain_graph=again, allow_unused=True)

    def zero(of: Any) -> Tensor:
        return torch.zeros_like(of) if isinstance(of, Tensor) else gradient.new_zeros(())

    return [zero(each) if arrived is None else arrived for each, arrived in zip(wanted, found, strict=True)]


def _add(held: dict[str, Tensor], name: str, gradient: Tensor) -> None:
    """Add to what a tied weight has already got."""
    held[name] = held[name] + gradient.to(held[name].device) if name in held else gradient


@contextmanager
def _noted(layer: nn.Module, number: int | None, calls: list[_Call], entered: list[Tensor], result: Tensor | None) -> Iterator[None]:
    """Inside, the layer notes what it is given, and hands on the hidden states or ``result``."""

    def forward(*given: Any, **named: Any) -> Any:
        hidden = given[0] if given else named.pop("hidden_states")
        entered.append(hidden)
        calls.append(_Call(given[1:], named, not given))
        gone = hidden if result is None else result
        return gone if number is None else (gone, *[None] * (number - 1))

    own = layer.__dict__.get("forward")
    layer.forward = forward
    try:
        yield
    finally:
        if own is None:
            del layer.forward
        else:
            layer.forward = own


@contextmanager
def _attention(anatomy: Anatomy, implementation: str) -> Iterator[None]:
    config = text_config(anatomy.model)
    before = config._attn_implementation
    config._attn_implementation = implementation
    try:
        yield
    finally:
        config._attn_implementation = before
