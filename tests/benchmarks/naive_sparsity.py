"""Finds changes of a fine-tune naively: ``python -m tests.benchmarks.naive_sparsity BASE TUNED`` loads both as models."""

import json
import sys
import time


def main(base: str, tuned: str) -> None:
    """Print the seconds of imports and work, and the share of unchanged elements by a mask for each parameter, as JSON."""
    start = time.perf_counter()
    import torch
    from transformers import AutoModel

    imported = time.perf_counter()
    models = [AutoModel.from_pretrained(folder, dtype=torch.float32) for folder in (base, tuned)]
    changed = total = 0
    with torch.no_grad():
        for one, other in zip(*(model.parameters() for model in models), strict=True):
            mask = one.to(torch.bfloat16) != other.to(torch.bfloat16)
            changed += int(mask.sum())
            total += mask.numel()
    found = {"num_changed": changed, "total_parameters": total, "sparsity": 1 - changed / total}
    print(json.dumps({"import_seconds": imported - start, "seconds": time.perf_counter() - imported, **found}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
