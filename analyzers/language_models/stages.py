"""A causal decoder of transformers as a list of functions: embed, layer 0 ... n - 1, head.

The model's own forward runs on a copy whose layers are stubs: they note their arguments and return the hidden states they are given. Masks,
positions, scales, soft caps and the final norm therefore need no knowledge of the family. Only the states between layers are kept: a layer
is recomputed in its backward step. The model itself is never changed: every module that computes is a copy, which shares its weights.

Axes: S samples, L tokens of each, N tokens of any samples, d hidden width, V vocabulary, n layers.
"""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from analyzers.checkpoints import quoted
from analyzers.core.errors import UnknownArchitecture
from analyzers.language_models.ffn import decoder_layers, text_config
from analyzers.language_models.model_failures import running

Prepare = Callable[[nn.Module, str], None]
"""Changes a copy before it runs, for example its dtype. Called with the copy and its name in the model, "" for `Stages.outside`."""
PART_TOKENS = 1024
"""Tokens, including padding, of a micro-batch (at least one sample's): enough for full speed."""
_CHECKED = 8  # Tokens on which the stages are compared with the model's own forward.
_CLOSE = {torch.float32: 1e-3, torch.float64: 1e-9}  # tolerance between logits computed twice by the same operations
_CLOSE_NARROW = 0.1
# By model and class of layer: the length of the tuple that the layer returns, None for a tensor.
_RESULTS: WeakKeyDictionary[nn.Module, dict[type, int | None]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A call of layer ``layer``: its arguments but for the hidden states, which are positional or named ``hidden_states``.

    differentiable: the arguments that have a gradient, such as per-layer embeddings.
    """

    layer: int
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    named: bool
    differentiable: tuple[Tensor, ...]


@dataclass(eq=False, slots=True)
class Part:
    """A micro-batch. calls: one per layer, in order; a layer that runs twice has two. embedded: (S, L, d), with its graph.

    hidden: the states (S, L, d) before each call and after the last, as far as they were computed.
    """

    embedded: Tensor
    calls: list[Call]
    hidden: list[Tensor]
    gradients: dict[Tensor, Tensor] = field(default_factory=dict)


class Stages:
    """The stages of ``model`` for micro-batches ``token_ids``, (S, L) each, without padding on the left.

    outside: the copy of the model that holds its parameters outside the layers; those within are on the meta device. weights: whether the
    weights of copies have gradients. Raises UnknownArchitecture for a decoder whose layers exchange more than the hidden states.
    """

    def __init__(
        self, model: nn.Module, token_ids: Sequence[Tensor], prepare: Prepare = lambda copy, name: None, weights: bool = False
    ) -> None:
        self._model = model
        self._prepare = prepare
        self._weights = weights
        self._layers = list(decoder_layers(model))
        self._names = {layer: name for name, layer in model.named_modules()}
        self._outputs = _RESULTS.setdefault(model, {})
        self._final: Tensor | None = None
        self._passed: list[Tensor] = []
        self._calls: list[Call] = []
        self.outside: Any = copied(model, weights, without=self._layers)
        prepare(self.outside, "")
        _align_devices(self.outside)
        for number, layer in enumerate(decoder_layers(self.outside)):
            layer.forward = partial(self._stub, number)
        self.parts = [self._record(each) for each in token_ids]

    @property
    def calls(self) -> Sequence[Call]:
        """The calls of the first micro-batch; those of the others differ in their arguments only."""
        return self.parts[0].calls

    @contextmanager
    def module(self, i: int) -> Iterator[nn.Module]:
        """Return a context with a fresh, prepared copy of the layer of call ``i``, which is thrown away at its end."""
        with self._copy(self._layers[self.calls[i].layer], self._weights) as copy:
            yield copy

    def close(self) -> None:
        """Free what the stages hold."""
        released(self.outside)
        self.parts = []

    def layer(self, i: int, part: Part, hidden: Tensor, module: nn.Module) -> Tensor:
        """Map the hidden states (S, L, d) before call ``i`` to those after it. module: from `module`."""
        result = _run(module, part.calls[i], hidden)
        return cast(Tensor, result[0] if isinstance(result, tuple) else result)

    def forward(self, keep: bool = False) -> Iterator[int]:
        """Run all layers, and yield the number of each call after it ran. keep: the states before it, for a backward pass."""
        for i in range(len(self.calls)):
            with self.module(i) as module, torch.no_grad(), running():
                for part in self.parts:
                    part.hidden.append(self.layer(i, part, part.hidden[i], module))
                    if not keep:
                        part.hidden[i] = part.hidden[i][:0]
            yield i

    def head(self, hidden: Tensor) -> Tensor:
        """Map outputs of the last layer, (N, d) or (S, L, d), to logits: final norm, head, scale and soft cap, token by token."""
        rows = hidden[:, None] if hidden.dim() == 2 else hidden
        device = self.outside.get_input_embeddings().weight.device
        self._final = rows
        try:
            logits = self.outside(input_ids=torch.zeros(rows.shape[:2], dtype=torch.int64, device=device), use_cache=False).logits
        finally:
            self._final = None
        return cast(Tensor, logits[:, 0] if hidden.dim() == 2 else logits)

    def backward(
        self,
        i: int,
        part: Part,
        gradient: Tensor,
        module: nn.Module,
        wanted: Callable[[], Sequence[Tensor | GradientEdge]],
        of_input: bool = True,
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """Recompute call ``i``, and return the gradients of its input (S, L, d) and of what is ``wanted``; None for one without.

        gradient: that of the call's output. wanted: called after the recomputation, so that it can return what hooks on ``module`` noted.
        of_input: whether the gradient of the input is needed. Gradients of differentiable arguments are added up for `embed_backward`: the
        first layer's input has them only there.
        """
        leaf, given = part.hidden[i].detach().requires_grad_(), part.calls[i].differentiable
        with torch.enable_grad(), running():
            output = self.layer(i, part, leaf, module)
        inputs = [*([leaf] if of_input else []), *given, *wanted()]
        results = list(gradients(output, inputs, gradient)) if inputs else []
        first = results.pop(0) if of_input else None
        for tensor, result in zip(given, results, strict=False):
            if result is not None:
                part.gradients[tensor] = part.gradients[tensor] + result if tensor in part.gradients else result
        return first, results[len(given) :]

    def embed_backward(self, part: Part, gradient: Tensor, weights: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients that ``weights`` of `outside` have through the layers' inputs, after the backward steps of all layers."""
        outputs = [part.embedded, *part.gradients]
        given = [gradient.to(part.embedded), *part.gradients.values()]
        part.gradients = {}
        return list(torch.autograd.grad(outputs, list(weights), given, retain_graph=True, allow_unused=True))

    @contextmanager
    def _copy(self, layer: nn.Module, weights: bool) -> Iterator[nn.Module]:
        copy = copied(layer, weights)
        try:
            self._prepare(copy, self._names[layer])
            yield copy
        finally:
            released(copy)

    def _record(self, token_ids: Tensor) -> Part:
        """Run the decoder with stubs."""
        self._passed, self._calls = [], []
        # No attention mask: no real token attends to padding on its right, and a fully masked row can become NaN.
        with torch.enable_grad(), running():
            self.outside.get_decoder()(input_ids=token_ids, use_cache=False)
        part = Part(self._embedded, self._calls, [self._embedded.detach()])
        self._passed, self._calls = [], []
        return part

    def _stub(self, number: int, *arguments: Any, **keywords: Any) -> Any:
        """Stand in for layer ``number`` of `outside`: note the call, or, within `head`, return the last layer's output."""
        if self._final is not None:
            return self._result(number, self._final)
        hidden: Tensor = arguments[0] if arguments else keywords.pop("hidden_states")
        if not self._calls:
            self._embedded = hidden
        elif hidden is not self._passed[-1]:
            raise self._unsupported("its decoder computes between its layers")
        given = [*arguments[1:], *keywords.values()]
        if any(isinstance(each, MutableMapping) for each in given):
            raise self._unsupported("its layers write into a dictionary that later layers read")
        differentiable = tuple(each for each in given if isinstance(each, Tensor) and each.requires_grad)
        if any(_depends(each, self._passed) for each in differentiable):
            raise self._unsupported("an argument of a layer is computed from the hidden states of earlier layers")
        self._calls.append(Call(number, arguments[1:], keywords, not arguments, differentiable))
        self._passed.append(hidden.detach().requires_grad_())
        return self._result(number, self._passed[-1])

    def _result(self, number: int, hidden: Tensor) -> Any:
        """Return hidden states in the form in which the layer returns them, which only the layer itself knows."""
        kind = type(self._layers[number])
        if kind not in self._outputs:
            with self._copy(self._layers[number], False) as module, torch.no_grad():
                result = _run(module, self._calls[-1], hidden)
            self._outputs[kind] = len(result) if isinstance(result, tuple) else None
        length = self._outputs[kind]
        return hidden if length is None else (hidden, *[None] * (length - 1))

    def _unsupported(self, why: str) -> UnknownArchitecture:
        kind = quoted(str(text_config(self._model).model_type))
        return UnknownArchitecture(f"Models of the type {kind} cannot be run layer by layer: {why}.")


@torch.no_grad()
def check_stages(model: nn.Module, token_ids: Tensor) -> None:
    """Raise UnknownArchitecture unless the stages give the model's own logits for the first of tokens (S, L).

    Guards against families that nobody has tested.
    """
    first = token_ids[:1, :_CHECKED]
    with closing(Stages(model, [first])) as stages, running():
        for _ in stages.forward():
            pass
        expected = cast(Any, model)(input_ids=first, use_cache=False).logits
        logits = stages.head(stages.parts[0].hidden[-1]).to(expected.device)
    close = _CLOSE.get(expected.dtype, _CLOSE_NARROW)
    if logits.shape != expected.shape or not torch.allclose(logits, expected, rtol=close, atol=close, equal_nan=True):
        kind = quoted(str(text_config(model).model_type))
        raise UnknownArchitecture(f"Models of the type {kind} compute other logits than their layers do one by one.")


def micro_batches(lengths: Sequence[int], most: int | None = None) -> list[list[int]]:
    """Split samples, the longest first, so that each part has at most ``most`` tokens with padding (at least one sample)."""
    parts: list[list[int]] = []
    most = PART_TOKENS if most is None else most
    for sample in sorted(range(len(lengths)), key=lambda sample: -lengths[sample]):
        if parts and (len(parts[-1]) + 1) * lengths[parts[-1][0]] <= most:
            parts[-1].append(sample)
        else:
            parts.append([sample])
    return parts


def padded_tokens(lengths: Sequence[int]) -> int:
    """Count the tokens of all micro-batches, including padding."""
    return sum(len(part) * lengths[part[0]] for part in micro_batches(lengths))


def gradients(output: Tensor, inputs: Sequence[Tensor | GradientEdge], gradient: Tensor, retain: bool = False) -> tuple[Any, ...]:
    """Return the gradients with respect to ``inputs``; None for one that is unused. retain: keep the graph."""
    given = gradient.to(output.device, output.dtype)
    return cast(tuple[Any, ...], torch.autograd.grad(output, cast(Any, inputs), given, retain_graph=retain, allow_unused=True))


def copied(module: nn.Module, weights: bool, without: Sequence[nn.Module] = ()) -> nn.Module:
    """Copy a module's structure. Its parameters become leaves that share their values with the module's; offloaded ones are read.

    weights: whether the leaves have gradients. Parameters of the modules ``without`` are left on the meta device. The copy has no hooks of
    accelerate.
    """
    from accelerate.utils import align_module_device

    left_out = {part for each in without for part in each.modules()}
    memo: dict[int, Any] = {}
    with ExitStack() as stack:
        for part in module.modules():
            if part not in left_out:
                stack.enter_context(cast(Any, align_module_device(part)))
            for parameter in part.parameters(recurse=False):
                value = parameter.detach()
                value = value.to("meta") if part in left_out else value
                memo[id(parameter)] = nn.Parameter(value, requires_grad=weights and value.is_floating_point())
            memo |= {id(buffer): buffer for buffer in part.buffers(recurse=False)}
            attributes = vars(part)
            if "config" in attributes:
                memo[id(attributes["config"])] = attributes["config"]
            if "_hf_hook" in attributes:
                memo[id(attributes["_hf_hook"])] = None
        copy = deepcopy(module, memo)
    for part in copy.modules():
        for name in ("forward", "_old_forward"):  # accelerate's
            vars(part).pop(name, None)
    return copy.eval()


def released(copy: nn.Module) -> None:
    """Take weights, hooks and replaced forwards off a copy, which refer to each other and would be freed late."""
    for part in list(copy.modules()):
        vars(part).pop("forward", None)
        for held in (part._parameters, part._forward_hooks, part._forward_pre_hooks):
            held.clear()


def _align_devices(module: nn.Module) -> None:
    """Let modules of a copy that are on several devices move what enters them to their own, as accelerate's hooks do."""
    if len({parameter.device for parameter in module.parameters() if not parameter.is_meta}) < 2:
        return

    from accelerate.utils import send_to_device

    def align(module: nn.Module, arguments: Any, keywords: Any) -> Any:
        device = next(module.parameters(recurse=False)).device
        return send_to_device(arguments, device), send_to_device(keywords, device)

    for part in module.modules():
        if part._parameters and not any(parameter.is_meta for parameter in part.parameters(recurse=False)):
            part.register_forward_pre_hook(align, with_kwargs=True)


def _depends(tensor: Tensor, leaves: Sequence[Tensor]) -> bool:
    if not leaves:
        return False
    results = torch.autograd.grad(tensor, list(leaves), torch.ones_like(tensor), retain_graph=True, allow_unused=True)
    return any(result is not None for result in results)


def _run(module: nn.Module, call: Call, hidden: Tensor) -> Any:
    device = next((parameter.device for parameter in module.parameters()), hidden.device)
    arguments, keywords = call.arguments, call.keywords
    if device != hidden.device:  # of a model on several devices
        from accelerate.utils import send_to_device

        hidden, arguments, keywords = send_to_device((hidden, arguments, keywords), device)
    if call.named:
        return module(*arguments, **keywords, hidden_states=hidden)
    return module(hidden, *arguments, **keywords)
