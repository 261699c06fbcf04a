"""The naive way to see extremes: ``python -m tests.benchmarks.naive_load FOLDER`` loads a model and asks each of its parameters."""

import json
import sys
import time


def main(folder: str) -> None:
    """Print as JSON how long the imports and the work took, and what was found."""
    start = time.perf_counter()
    import torch
    from transformers import AutoModel

    imported = time.perf_counter()
    model = AutoModel.from_pretrained(folder)
    low, high, norms = float("inf"), 0.0, []
    with torch.no_grad():
        for parameter in model.parameters():
            magnitude = parameter.abs()
            low, high = min(low, magnitude.min().item()), max(high, magnitude.max().item())
            norms.append(parameter.norm().item())
    found = {"abs_min": low, "abs_max": high, "norm_min": min(norms), "norm_max": max(norms)}
    print(json.dumps({"import_seconds": imported - start, "seconds": time.perf_counter() - imported, **found}))


if __name__ == "__main__":
    main(sys.argv[1])
