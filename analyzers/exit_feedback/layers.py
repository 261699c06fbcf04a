"""Which layers the logit lens looks through."""

import numpy as np

from analyzers.errors import InvalidRequest
from analyzers.terminal import plural

_AUTO = 6


def chosen_layers(asked: str, layers: int) -> tuple[int, ...]:
    """Numbers of layers in order, the last of the model always among them. asked: as of `ExitRequest`.

    Raises InvalidRequest for a layer that is not there.
    """
    last = layers - 1
    if asked == "final":
        return (last,)
    if asked == "all":
        return tuple(range(layers))
    if asked == "auto":
        return tuple(sorted({round(layer) for layer in np.linspace(0, last, min(_AUTO, layers))}))
    found = {last}
    for part in asked.split(","):
        low, _, high = part.partition("-")
        if int(high or low) > last:
            raise InvalidRequest(f"There is no layer {int(high or low)}: the model has {plural(layers, 'layer')}, counted from 0.")
        found |= set(range(int(low), int(high or low) + 1))
    return tuple(sorted(found))
