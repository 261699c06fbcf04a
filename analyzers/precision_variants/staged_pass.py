"""One run of a model, forward and backward, stage by stage; the tensors of every stage are yielded before the next begins.

Between stages the model is unchanged: cast weights, replaced forwards and settings of torch exist only while a stage computes. As with
activation checkpointing, a layer runs forward once more in the backward pass, so that only one layer's activations and cast weights are
held; both runs give the same bits. The graphs of the last layers are kept instead while they are small (`saved_graphs`). The decoder
prepares masks and positions itself: it is called with layers that only record their arguments.

Axes: S sequences, L predicted tokens of each, d hidden width, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from analyzers.core import limits
from analyzers.language_models.ffn import text_config
from analyzers.language_models.layer_hooks import replaced_forward, replaced_forwards
from analyzers.language_models.lm_head import LogitMap
from analyzers.language_models.loaded_dtypes import is_within_peft
from analyzers.language_models.offload import is_offloaded, weights_read
from analyzers.precision_variants.casts import Casts, arithmetic, attention
from analyzers.precision_variants.headroom import Peaks
from analyzers.precision_variants.losses import log_probabilities, logits_gradient
from analyzers.precision_variants.measurements import Kind
from analyzers.precision_variants.model_parts import ModelParts
from analyzers.precision_variants.module_outputs import ModuleOutputs, Output
from analyzers.precision_variants.saved_graphs import Graph, SavedGraphs, saved_bytes
from analyzers.precision_variants.spots import INPUT, Spots
from analyzers.precision_variants.variant_weights import STORED, Leaf, Rounding, Weights, in_place
from analyzers.precision_variants.variants import Settings

_NO_COMPUTATION = (nn.Dropout, nn.Identity)
_Forwards = list[tuple[nn.Module, Callable[..., Any]]]


@dataclass(frozen=True, eq=False, slots=True)
class Captured:
    """One tensor of a run, named as in `report.TensorError`. Gradients include the loss scale.

    routed: its rows are those of the experts one after the other, each with the tokens that the router sends there.
    """

    kind: Kind
    name: str
    layer: int | None
    tensor: Tensor
    routed: bool = False

    @property
    def key(self) -> tuple[Kind, str, int | None]:
        """Key of a tensor within a run."""
        return self.kind, self.name, self.layer


@dataclass(frozen=True, slots=True)
class PassOptions:
    """How to run: settings, attention implementation, rounding of the weights beforehand; inside: also capture modules within layers; kept:
    bytes of graphs that are kept for the backward pass; located: also find where the largest values are.
    """

    settings: Settings
    attention: str
    rounding: Rounding = STORED
    inside: bool = False
    kept: int | None = None
    located: bool = False


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of a layer except the hidden states. by_name: these are passed as a keyword argument."""

    positional: tuple[Any, ...]
    keywords: Mapping[str, Any]
    by_name: bool


class StagedPass:
    """A run over ``token_ids`` (S, L + 1). Exhaust `forward`, then `backward`, which can be repeated.

    logits: (S, L, V); log_p: (S, L) fp32, of the chosen tokens; forward_peaks, weight_peaks, backward_peaks (of the last backward pass).
    routing: (tokens, k) by layer, the experts that the router chose for each token.
    not_called: modules within layers that were not called.
    """

    def __init__(self, anatomy: ModelParts, token_ids: Tensor, options: PassOptions) -> None:
        self.anatomy = anatomy
        self.options = options
        self.routing: dict[int, Tensor] = {}
        self.not_called: list[str] = []
        self.forward_peaks, self.backward_peaks, self.weight_peaks = self._peaks(), self._peaks(), Peaks()
        self._input_ids, self._targets = token_ids[:, :-1], token_ids[:, 1:]
        self._parts = Casts(anatomy, options.settings, token_ids.device.type)
        self._weights = Weights(anatomy, options.settings, options.rounding)
        self._buffers = self._weights.buffers()
        self._hidden: list[Tensor] = []
        self._calls: list[_Call] = []
        self._offloaded = is_offloaded(anatomy.layers[0])
        self._seen = ModuleOutputs(options.inside)
        self._computing: dict[int, dict[str, nn.Module]] = {}
        self._forwards: dict[int, _Forwards] = {}
        self._config = text_config(anatomy.model)
        self._sizes: dict[tuple[object, ...], int] = {}  # of graphs, by the kind of layer: measuring takes a call for each saved tensor
        self._graphs = SavedGraphs(0 if self._offloaded else limits.PRECISION_KEPT_BYTES if options.kept is None else options.kept)
        self._before_layers: set[str]
        self.logits: Tensor
        self.log_p: Tensor

    def forward(self) -> Iterator[list[Captured]]:
        """Embeddings; layers (the modules inside first); logits."""
        last = len(self.anatomy.layers)
        with self._stage(), torch.enable_grad():
            self._embedding_leaves = self._weights.leaves(self.anatomy.outside, False)
            self._embedded = self._decoder(self._embedding_leaves, None)
        used = _graph_leaves(self._embedded)
        self._before_layers = {leaf.name for leaf in self._embedding_leaves if leaf.tensor in used}
        yield [self._boundary("embeddings", self._embedded.detach(), [])]
        for layer in range(last):
            with self._stage():
                self._graphs.make_room()
                graph, outputs = self._run_layer(layer)
                if not self._seen.copies and any(tensor._version != version for _, tensor, version in outputs):
                    self._seen.copies = True  # a module has written into the output of another
                    del graph, outputs
                    graph, outputs = self._run_layer(layer)
                self.weight_peaks.add((layer, leaf.name, leaf.tensor) for leaf in graph.leaves)
                output = graph.output.detach()
                self._graphs.keep(graph)
                del graph
            ran = [(name, tensor) for name, tensor, _ in outputs if not name.endswith(INPUT)]
            names = {name for name, _ in ran}
            self.not_called += [f"layers.{layer}.{name}" for name in self._computing[layer] if name not in names]
            captured = self._inside("inside", layer, ran)
            captured.append(self._boundary(f"layers.{layer}", output, outputs))
            del outputs, ran
            yield captured
            del captured
        with self._stage():
            self._head_leaves = self._weights.leaves([self.anatomy.head], False)
            with torch.enable_grad():
                self._last_hidden = self._hidden[last].detach().requires_grad_()
                self._final = self._decoder(self._embedding_leaves, self._last_hidden)
            with torch.enable_grad(), in_place(self._head_leaves):
                self._head_input = self._final.detach().requires_grad_()
                with self._parts.autocast():
                    logits = self._parts.logits(self._head_input)
                self.logits = LogitMap.of(self.anatomy.model)(logits)
            self._targets = self._targets.to(self.logits.device)
            self.log_p = log_probabilities(self.logits, self._targets)
        self.weight_peaks.add((self._outside(leaf.name), leaf.name, leaf.tensor) for leaf in self._embedding_leaves)
        self.weight_peaks.add((last, leaf.name, leaf.tensor) for leaf in self._head_leaves)
        self.forward_peaks.add([(last, "final norm", self._final.detach()), (last, "logits", self.logits)])
        yield [Captured("logits", "logits", None, self.logits.detach())]

    def backward(self, coefficients: Tensor, scale: float) -> Iterator[list[Captured]]:
        """Gradients of scale times the loss, from the logits down to the embeddings. coefficients: (S, L), see `losses`."""
        self.backward_peaks = self._peaks()
        last = len(self.anatomy.layers)
        with self._stage():
            gradient = logits_gradient(self.logits, self._targets, coefficients * scale)
            self.backward_peaks.add([(last, "logits", gradient)])
        yield [Captured("logits_grad", "logits", None, gradient)]
        with self._stage():
            inputs = [self._head_input, *(leaf.tensor for leaf in self._head_leaves)]
            final_gradient, *head_gradients = _gradients(self.logits, inputs, gradient, retain=True)
            gradients = {leaf.name: each for leaf, each in zip(self._head_leaves, head_gradients, strict=True)}
            self.backward_peaks.add([(last, "final norm", final_gradient)])
            inputs = [self._last_hidden, *(leaf.tensor for leaf in self._embedding_leaves)]
            gradient, *norm_gradients = _gradients(self._final, inputs, final_gradient, retain=True)
            for leaf, each in zip(self._embedding_leaves, norm_gradients, strict=True):
                _add(gradients, leaf.name, each)
            del final_gradient, head_gradients, norm_gradients
        yield [self._boundary_gradient(last, gradient, [])]
        for layer in reversed(range(last)):
            with self._stage():
                graph = self._graphs.take(layer) or self._run_layer(layer)[0]
                leaves, edges = graph.leaves, graph.edges
                inputs = [graph.hidden, *(leaf.tensor for leaf in leaves)]
                results = _gradients(graph.output, [*inputs, *(edge for _, edge in edges)], gradient)
                del graph
                gradient, inside = results[0], [(name, each) for (name, _), each in zip(edges, results[len(inputs) :], strict=True)]
                parameters = [(leaf.name, each) for leaf, each in zip(leaves, results[1 : len(inputs)], strict=True)]
                del results, leaves, inputs, edges  # an edge holds its graph, and so the weights
            captured = self._inside("inside_grad", layer, inside)
            captured += [Captured("parameter_grad", name, layer, each) for name, each in parameters]
            captured.append(self._boundary_gradient(layer, gradient, [*inside, *parameters]))
            yield captured
            del inside, parameters, captured
        with self._stage():
            inputs = [leaf.tensor for leaf in self._embedding_leaves]
            for leaf, each in zip(self._embedding_leaves, _gradients(self._embedded, inputs, gradient, retain=True), strict=True):
                _add(gradients, leaf.name, each)
        self.backward_peaks.add((self._outside(name), name, each) for name, each in gradients.items())
        yield [Captured("parameter_grad", name, None, each) for name, each in gradients.items()]

    def _outside(self, name: str) -> int:
        """The number for a parameter outside the layers: -1 before them, as the embeddings; that after the last, as the final norm."""
        return -1 if name in self._before_layers else len(self.anatomy.layers)

    @contextmanager
    def _stage(self) -> Iterator[None]:
        device = self._input_ids.device.type
        with arithmetic(self.options.settings, device), attention(self._config, self.options.attention), in_place(self._buffers):
            yield

    def _boundary(self, name: str, hidden: Tensor, inside: Sequence[Output]) -> Captured:
        """Keep the output of a stage for the backward pass."""
        layer = len(self._hidden) - 1
        self._hidden.append(hidden)
        self.forward_peaks.add([*((layer, inner, tensor) for inner, tensor, _ in inside), (layer, name, hidden)])
        return Captured("hidden", name, layer, hidden)

    def _boundary_gradient(self, above: int, gradient: Tensor, inside: Sequence[tuple[str, Tensor]]) -> Captured:
        """The gradient that leaves layer ``above``, after those inside it."""
        layer = above - 1
        name = f"layers.{layer}" if above else "embeddings"
        self.backward_peaks.add([*((above, inner, each) for inner, each in inside), (layer, name, gradient)])
        return Captured("hidden_grad", name, layer, gradient)

    def _inside(self, kind: Kind, layer: int, tensors: Sequence[tuple[str, Tensor]]) -> list[Captured]:
        """The outputs of modules within a layer, or their gradients, if requested. Those of a module that runs once for each expert are
        one tensor.
        """
        runs: dict[str, list[Tensor]] = {}
        for name, tensor in tensors if self.options.inside else ():
            runs.setdefault(name, []).append(tensor)
        experts, modules = self.anatomy.experts.get(layer), self.anatomy.inside[layer]
        routed = [*experts.modules()][1:] if experts is not None else []
        return [Captured(kind, name, layer, torch.cat(each), modules[name] in routed) for name, each in runs.items()]

    def _run_layer(self, layer: int) -> tuple[Graph, list[Output]]:
        """Run a layer with autograd. Returns also the outputs of its modules and their other inputs, copied where one is written into."""
        with weights_read(self.anatomy.layers[layer]):
            leaves = self._weights.leaves(self.anatomy.inside[layer].values(), True)
            kind = type(self.anatomy.layers[layer]), *(leaf.tensor.shape for leaf in leaves)
            sizes = nullcontext() if kind in self._sizes else saved_bytes(leaves)
            hidden = self._hidden[layer].detach().requires_grad_()
            self._seen.clear(hidden)
            with torch.enable_grad(), sizes as saved:
                output = self._layer(layer, hidden, leaves)
            if saved is not None:
                self._sizes[kind] = sum(saved.values())
        seen = self._seen
        graph, outputs = Graph(layer, hidden, output, leaves, seen.edges, self._sizes[kind]), seen.outputs
        seen.clear(hidden)
        return graph, outputs

    def _layer(self, layer: int, hidden: Tensor, leaves: Sequence[Leaf]) -> Tensor:
        module, call = self.anatomy.layers[layer], self._calls[layer]
        with ExitStack() as stack:
            if self._offloaded:  # accelerate's forward would read the weights again, over the leaves
                stack.enter_context(replaced_forward(module, partial(type(module).forward, module)))
            stack.enter_context(in_place(leaves))
            stack.enter_context(replaced_forwards(self._layer_forwards(layer)))
            stack.enter_context(self._parts.autocast())
            hidden = self._parts.to_stream(hidden)
            positional = call.positional if call.by_name else (hidden, *call.positional)
            keywords = {**call.keywords, "hidden_states": hidden} if call.by_name else call.keywords
            result = module(*positional, **keywords)
            return self._parts.to_stream(cast(Tensor, result[0] if isinstance(result, tuple) else result))

    def _decoder(self, leaves: Sequence[Leaf], result: Tensor | None) -> Tensor:
        """The input of the first layer; or, given the ``result`` of the last layer, the output of the decoder."""
        calls: list[_Call] = []
        inputs: list[Tensor] = []
        with ExitStack() as stack:
            for layer, number in zip(self.anatomy.layers, self.anatomy.results, strict=True):
                returned = result if layer is self.anatomy.layers[-1] else None
                stack.enter_context(replaced_forward(layer, _recording(number, calls, inputs, returned)))
            stack.enter_context(in_place(leaves))
            casts = ((module, self._parts.forward(module, None)) for module in self.anatomy.outside)
            stack.enter_context(replaced_forwards([(module, forward) for module, forward in casts if forward is not None]))
            stack.enter_context(self._parts.autocast())
            final = cast(Any, self.anatomy.decoder)(input_ids=self._input_ids, use_cache=False).last_hidden_state
        if result is None:
            self._calls = calls
            return inputs[0]
        return cast(Tensor, final)

    def _layer_forwards(self, layer: int) -> _Forwards:
        """The forwards of the modules within a layer: with their casts, and observed where they compute something."""
        if layer not in self._forwards:
            modules, attention = self.anatomy.inside[layer], self.anatomy.attentions[layer]
            self._computing[layer] = {
                name: module
                for name, module in modules.items()
                if name and not is_within_peft(name) and not isinstance(module, _NO_COMPUTATION)
                if module._parameters or not next(module.children(), None) or hasattr(module, "base_layer")
            }
            forwards = self._forwards[layer] = []
            for name, module in modules.items():
                own, cast = module.forward, self._parts.forward(module, attention)
                forward = own if cast is None else cast
                if name in self._computing[layer]:
                    forward = self._seen.observed(name, forward)
                if module is self.anatomy.experts.get(layer):
                    forward = _routed(layer, self.routing, forward)
                if forward is not own:
                    forwards.append((module, forward))
        return self._forwards[layer]

    def _peaks(self) -> Peaks:
        return Peaks(Spots() if self.options.located else None)


def _routed(layer: int, routing: dict[int, Tensor], forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward of experts that records the experts chosen for each token: the second argument in every family."""

    def run(*arguments: Any, **named: Any) -> Any:
        routing[layer] = arguments[1].detach()
        return forward(*arguments, **named)

    return run


def _graph_leaves(output: Tensor) -> set[Tensor]:
    """The tensors that a backward pass from ``output`` gives a gradient."""
    nodes, seen, leaves = [output.grad_fn], set(), set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(node.variable)
        nodes += [next_node for next_node, _ in node.next_functions]
    return leaves


def _gradients(output: Tensor, inputs: Sequence[Any], gradient: Tensor, retain: bool = False) -> list[Tensor]:
    """Gradients with respect to ``inputs``; zeros for one that is unused (a scalar for an edge). retain: keep the graph."""
    gradients = torch.autograd.grad(
        output, cast(Any, inputs), gradient.to(output.device, output.dtype), retain_graph=retain, allow_unused=True
    )

    def zero(of: Any) -> Tensor:
        return torch.zeros_like(of) if isinstance(of, Tensor) else gradient.new_zeros(())

    return [zero(of) if result is None else result for of, result in zip(inputs, gradients, strict=True)]


def _add(gradients: dict[str, Tensor], name: str, gradient: Tensor) -> None:
    """Accumulate, for tied weights."""
    gradients[name] = gradients[name] + gradient.to(gradients[name].device) if name in gradients else gradient


def _recording(number: int | None, calls: list[_Call], inputs: list[Tensor], result: Tensor | None) -> Callable[..., Any]:
    """A layer's forward that records its arguments and returns the hidden states, or ``result``. number: of its outputs."""

    def forward(*positional: Any, **keywords: Any) -> Any:
        hidden = positional[0] if positional else keywords.pop("hidden_states")
        inputs.append(hidden)
        calls.append(_Call(positional[1:], keywords, not positional))
        output = hidden if result is None else result
        return output if number is None else (output, *[None] * (number - 1))

    return forward
