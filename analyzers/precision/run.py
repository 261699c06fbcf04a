"""One run of a model, forward and backward, layer by layer, on thrown-away copies; its tensors are given away stage by stage.

Axes: S sequences, L predicted tokens of each, d hidden width, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from analyzers.language_models.ffn import decoder_layers, layer_ffns, text_config
from analyzers.language_models.model_failures import running
from analyzers.language_models.stages import Stages, gradients
from analyzers.precision.casts import STORED, Casts, Rounding, RunnableModel, arithmetic, attention
from analyzers.precision.losses import log_probabilities, logits_gradient
from analyzers.precision.magnitudes import INPUT, Peaks
from analyzers.precision.measurements import Kind
from analyzers.precision.variants import Settings

_NO_COMPUTATION = (nn.Dropout, nn.Identity)


@dataclass(frozen=True, eq=False, slots=True)
class Captured:
    """One tensor of a run, named as in `measurements.TensorError`. Gradients include the loss scale."""

    kind: Kind
    name: str
    layer: int | None
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run: settings, attention implementation, rounding of the weights beforehand; inside: also capture modules within layers."""

    settings: Settings
    attention: str
    rounding: Rounding = STORED
    inside: bool = False


class Run:
    """A run over ``token_ids``: batches (S, L + 1), only one of which can go backward. Call `forward` for all layers, then `head`; then
    `begin_backward`, `backward` for all layers and `end_backward`, which can be repeated.

    log_p: (S, L) fp32, of the chosen tokens; forward_peaks, weight_peaks, backward_peaks (of the last backward pass).
    """

    def __init__(self, model: RunnableModel, token_ids: Sequence[Tensor], options: RunOptions) -> None:
        self.model = model
        self.options = options
        self.scale = 1.0
        self.forward_peaks, self.weight_peaks = Peaks(), Peaks()
        self._device = token_ids[0].device.type
        self._token_ids, self._targets = token_ids, token_ids[0][:, 1:]
        casts = Casts(model, options.settings, options.rounding, self._device)
        with self._stage():
            self.stages = Stages(model.model, [each[:, :-1] for each in token_ids], casts, weights=True)
        self._part = self.stages.parts[0]
        self._names = {layer: name for name, layer in model.model.named_modules()}
        self._outside = self._weights_outside()
        used = _graph_leaves(self._part.embedded)
        self._before = {name for name, weight in self._outside if weight in used}
        self.log_p: Tensor
        self._begin()

    @property
    def layers(self) -> int:
        """The number of decoder layers."""
        return self.model.layers

    def embeddings(self) -> list[Captured]:
        """Return the output of the embeddings."""
        head = {id(weight) for weight in self.stages.outside.get_output_embeddings().parameters()}
        for name, weight in self._outside:
            self.weight_peaks.add(self.layers if id(weight) in head else self._place(name), name, weight)
        self.weight_peaks.settle()
        return [self._hidden(-1)]

    def forward(self, i: int) -> list[Captured]:
        """Run layer ``i``: return what its modules compute, and its output."""
        part = self._part
        with self._stage(), self.stages.module(i) as module:
            watched = _Watched(module, self.model, i, self.forward_peaks, keep=self.options.inside)
            for name, weight in self._weights_of(i, module):
                self.weight_peaks.add(i, name, weight)
            self.weight_peaks.settle()
            watched.enters(part.hidden[i])
            with torch.no_grad(), running():
                part.hidden.append(self.stages.layer(i, part, part.hidden[i], module))
        return [*watched.captured("inside", watched.outputs), self._hidden(i)]

    def head(self) -> Captured:
        """Return the logits, and set ``log_p``."""
        finals: list[Tensor] = []
        with self._stage(), torch.no_grad(), self._observed_head(finals):
            logits = self.stages.head(self._part.hidden[-1])
            self.log_p = log_probabilities(logits, self._targets.to(logits.device))
        self.forward_peaks.add(self.layers, "final norm", finals[0])
        self.forward_peaks.add(self.layers, "logits", logits)
        self.forward_peaks.settle()
        return Captured("logits", "logits", None, logits)

    def begin_backward(self, coefficients: Tensor) -> list[Captured]:
        """Begin at the loss: return the gradients of the logits and of the last layer's output. coefficients: (S, L), see `losses`.

        The loss is multiplied by ``scale``.
        """
        self._begin()
        leaf, finals = self._part.hidden[-1].detach().requires_grad_(), list[Tensor]()
        with self._stage():
            with torch.enable_grad(), self._observed_head(finals):
                logits = self.stages.head(leaf)
            gradient = logits_gradient(logits, self._targets.to(logits.device), coefficients * self.scale)
            self.backward_peaks.add(self.layers, "logits", gradient)
            weights = [weight for _, weight in self._outside]
            self._gradient, final, *of_weights = gradients(logits, [leaf, get_gradient_edge(finals[0]), *weights], gradient)
        self.backward_peaks.add(self.layers, "final norm", final)
        for (name, weight), each in zip(self._outside, of_weights, strict=True):
            self._add_outside(name, weight, each)
        captured = [Captured("logits_grad", "logits", None, gradient), self._hidden_grad(self.layers)]
        self.backward_peaks.settle()
        return captured

    def backward(self, i: int) -> list[Captured]:
        """Continue through layer ``i``: return the gradients of its modules' outputs, of its weights and of its input."""
        with self._stage(), self.stages.module(i) as module:
            watched, weights = _Watched(module, self.model, i), self._weights_of(i, module)

            def wanted() -> list[Tensor | GradientEdge]:
                return [*(weight for _, weight in weights), *(edge for _, edge in watched.edges)]

            gradient, results = self.stages.backward(i, self._part, self._gradient, module, wanted)
        assert gradient is not None
        self._gradient = gradient
        named: dict[str, Tensor] = {}
        for (name, weight), each in zip(weights, results, strict=False):
            _accumulate(named, name, torch.zeros_like(weight) if each is None else each)
        of_modules = results[len(weights) :]
        modules = [name for name, _ in watched.edges]
        inside = [(name, gradient.new_zeros(()) if each is None else each) for name, each in zip(modules, of_modules, strict=True)]
        for name, each in inside:
            self.backward_peaks.add(i, name, each)
        for name, each in named.items():
            self.backward_peaks.add(i, name, each)
        captured = watched.captured("inside_grad", inside if self.options.inside else ())
        captured += [Captured("parameter_grad", name, i, each) for name, each in named.items()]
        captured.append(self._hidden_grad(i))
        self.backward_peaks.settle()
        return captured

    def end_backward(self) -> list[Captured]:
        """Return the gradients of the weights outside the layers."""
        weights = [weight for _, weight in self._outside]
        with self._stage():
            results = self.stages.embed_backward(self._part, self._gradient, weights)
        for (name, weight), each in zip(self._outside, results, strict=True):
            self._add_outside(name, weight, each)
        for name, each in self._of_outside.items():
            self.backward_peaks.add(self._place(name), name, each)
        self.backward_peaks.settle()
        return [Captured("parameter_grad", name, None, each) for name, each in self._of_outside.items()]

    def forward_only(self, asked: Sequence[Sequence[tuple[int, int]]]) -> Iterator[list[tuple[Tensor, Tensor]] | None]:
        """Run all batches forward: yield None after each layer; at last, for each batch, log p (S, L) and the logits of the predictions
        ``asked`` for, (sequence, position), as (n, V) in fp32.
        """
        layers = self.stages.forward()
        while True:
            with self._stage():
                if next(layers, None) is None:
                    break
            yield None
        results = []
        with self._stage(), torch.no_grad(), running():
            for part, batch, chosen in zip(self.stages.parts, self._token_ids, asked, strict=True):
                log_p, logits = torch.empty(batch.shape[0], batch.shape[1] - 1), list[Tensor]()
                for row, (hidden, targets) in enumerate(zip(part.hidden[-1], batch[:, 1:], strict=True)):
                    of_row = self.stages.head(hidden)
                    log_p[row] = log_probabilities(of_row[None], targets[None].to(of_row.device))[0]
                    logits += [of_row[position].float().cpu() for sequence, position in chosen if sequence == row]
                results.append((log_p, torch.stack(logits) if logits else torch.empty(0)))
        self.close()
        yield results

    def close(self) -> None:
        """Free what the run holds, except for its results."""
        self.stages.close()
        del self._part, self._outside, self._of_outside

    def _begin(self) -> None:
        self.backward_peaks = Peaks()
        self._of_outside: dict[str, Tensor] = {}

    @contextmanager
    def _stage(self) -> Iterator[None]:
        with arithmetic(self.options.settings, self._device), attention(text_config(self.model.model), self.options.attention):
            yield

    @contextmanager
    def _observed_head(self, finals: list[Tensor]) -> Iterator[None]:
        """Return a context that notes what enters the head."""
        hook = self.stages.outside.get_output_embeddings().register_forward_pre_hook(lambda module, given: finals.append(given[0]))
        try:
            yield
        finally:
            hook.remove()

    def _hidden(self, layer: int) -> Captured:
        name, hidden = "embeddings" if layer < 0 else f"layers.{layer}", self._part.hidden[layer + 1]
        self.forward_peaks.add(layer, name, hidden)
        self.forward_peaks.settle()
        return Captured("hidden", name, layer, hidden)

    def _hidden_grad(self, above: int) -> Captured:
        """Return the gradient that leaves layer ``above``."""
        layer = above - 1
        name = f"layers.{layer}" if above else "embeddings"
        self.backward_peaks.add(layer, name, self._gradient)
        return Captured("hidden_grad", name, layer, self._gradient)

    def _place(self, name: str) -> int:
        """Return the number for a parameter outside the layers: -1 before them, as the embeddings; that after the last, as the norm."""
        return -1 if name in self._before else self.layers

    def _weights_outside(self) -> list[tuple[str, Tensor]]:
        """Return the weights of head and decoder outside the layers, the head's first, with their names; tied ones are apart."""
        outside = self.stages.outside
        decoder, head, names = outside.get_decoder(), outside.get_output_embeddings(), self.model.names
        own = {id(module) for module in decoder.modules()} - {id(head)}
        found: list[tuple[int, str, Tensor]] = []
        for path, module in outside.named_modules():
            if module is head or id(module) in own:
                for key, weight in module._parameters.items():
                    name = f"{path}.{key}"
                    if weight is not None and not weight.is_meta:
                        found.append((0 if module is head else 1, names[name], weight))
        return [(name, weight) for _, name, weight in sorted(found, key=lambda each: each[0])]

    def _weights_of(self, i: int, module: nn.Module) -> list[tuple[str, Tensor]]:
        """Return the weights of a copy of layer ``i`` with their names."""
        path = self._names[decoder_layers(self.model.model)[self.stages.calls[i].layer]]
        every = module.named_parameters(path, remove_duplicate=False)
        return [(self.model.names[name], weight) for name, weight in every if weight.requires_grad]

    def _add_outside(self, name: str, weight: Tensor, gradient: Tensor | None) -> None:
        """Accumulate, for tied weights."""
        if gradient is not None or name not in self._of_outside:
            _accumulate(self._of_outside, name, torch.zeros_like(weight) if gradient is None else gradient)


class _Watched:
    """The modules of a copy of a layer that compute something, whose inputs and outputs hooks note.

    peaks: of all that enters and leaves them, None in a backward pass, which notes where the gradients of outputs arrive in ``edges``, once
    for each time that a module ran. keep: outputs are kept in ``outputs``, copied, since modules may write into them.
    """

    def __init__(self, module: nn.Module, model: RunnableModel, layer: int, peaks: Peaks | None = None, keep: bool = False) -> None:
        self._layer, self._peaks, self._keep = layer, peaks, keep
        self.outputs: list[tuple[str, Tensor]] = []
        self.edges: list[tuple[str, GradientEdge]] = []
        self._known: set[tuple[int, int]] = set()
        self._held: list[Tensor] = []  # so that no other tensor takes the address of a known one
        experts = next((ffn.experts for ffn in layer_ffns(model.model, layer, module) if ffn.experts is not None), None)
        self._routed = set() if experts is None else {*list(experts.modules())[1:]}
        self.computing = {name: each for name, each in module.named_modules() if name and _computes(name, each)}
        for name, each in self.computing.items():
            each.register_forward_hook(self._hook(name))

    def enters(self, hidden: Tensor) -> None:
        """Note what enters the layer, which is the output of the one before."""
        self._known.add((hidden.data_ptr(), hidden.numel()))

    def captured(self, kind: Kind, tensors: Sequence[tuple[str, Tensor]]) -> list[Captured]:
        """Return outputs or their gradients, those of a module that runs twice as one tensor. Within experts the rows are those of the
        tokens that a run sends there, which have no counterpart in another run.
        """
        runs: dict[str, list[Tensor]] = {}
        for name, tensor in tensors:
            if self.computing[name] not in self._routed:
                runs.setdefault(name, []).append(tensor)
        return [Captured(kind, name, self._layer, torch.cat(each)) for name, each in runs.items()]

    def _hook(self, name: str) -> Any:
        def note(module: nn.Module, given: tuple[Any, ...], result: Any) -> None:
            output = result[0] if isinstance(result, tuple) else result
            is_value = isinstance(output, Tensor) and output.is_floating_point()
            if self._peaks is None:
                if is_value and output.requires_grad:
                    self.edges.append((name, get_gradient_edge(output)))
                return
            for argument in given:
                if isinstance(argument, Tensor) and argument.is_floating_point():
                    self._add(name + INPUT, argument)
            if is_value:
                self._known.discard((output.data_ptr(), output.numel()))  # a module that returns what it was given
                self._add(name, output)
                if self._keep:
                    self.outputs.append((name, output.detach().clone()))

        return note

    def _add(self, name: str, tensor: Tensor) -> None:
        assert self._peaks is not None
        place = tensor.data_ptr(), tensor.numel()
        if place not in self._known:
            self._known.add(place)
            self._held.append(tensor.detach())
            self._peaks.add(self._layer, name, tensor)


def _computes(name: str, module: nn.Module) -> bool:
    if isinstance(module, _NO_COMPUTATION):
        return False
    return bool(module._parameters) or not next(module.children(), None)


def _accumulate(gradients: dict[str, Tensor], name: str, gradient: Tensor) -> None:
    gradients[name] = gradients[name] + gradient.to(gradients[name].device) if name in gradients else gradient


def _graph_leaves(output: Tensor) -> set[Tensor]:
    """Return the tensors that a backward pass from ``output`` gives a gradient."""
    nodes, seen, leaves = [output.grad_fn], set(), set()
    while nodes:
        node: Any = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(node.variable)
        nodes += [following for following, _ in node.next_functions]
    return leaves
