"""Records what the modules of a layer compute as it runs forward: outputs, other inputs, and edges for the gradients of the outputs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from analyzers.precision_variants.spots import INPUT

Output = tuple[str, Tensor, int]
"""Name and output of a module, and the number of writes into it so far."""


@dataclass(slots=True)
class ModuleOutputs:
    """The outputs of the modules that run through `observed` since `clear`, and their inputs that are no module's output.

    copies: whether outputs are copied, since modules write into them; edges: by the module's name, once for each time that it ran.
    """

    copies: bool
    outputs: list[Output] = field(default_factory=list)
    edges: list[tuple[str, GradientEdge]] = field(default_factory=list)
    _known: set[tuple[int, int]] = field(default_factory=set)

    def clear(self, hidden: Tensor) -> None:
        """Forget what ran. hidden: the input of the layer that runs next."""
        self.outputs, self.edges, self._known = [], [], {(hidden.data_ptr(), hidden.numel())}

    def observed(self, name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a module's forward that records its positional inputs and its output."""

        def run(*arguments: Any, **named: Any) -> Any:
            result = forward(*arguments, **named)
            for argument in arguments:
                if isinstance(argument, Tensor) and argument.is_floating_point():
                    self._add(name + INPUT, argument, True)
            output = result[0] if isinstance(result, tuple) else result
            if isinstance(output, Tensor) and output.is_floating_point():
                self._add(name, output, False)
            return result

        return run

    def _add(self, name: str, tensor: Tensor, entered: bool) -> None:
        place = tensor.data_ptr(), tensor.numel()
        if entered and place in self._known:
            return  # the output of a module before
        output = tensor.detach()
        if self.copies:
            output = output.clone()
            place = output.data_ptr(), place[1]
        self._known.add(place)
        self.outputs.append((name, output, output._version))
        if tensor.requires_grad and not entered:
            self.edges.append((name, get_gradient_edge(tensor)))
