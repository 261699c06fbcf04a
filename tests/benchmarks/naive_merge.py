"""Merges an adapter with peft, in fp32, and saves the model: ``python -m tests.benchmarks.naive_merge BASE ADAPTER OUT``."""

import sys


def main(base: str, adapter: str, out: str) -> None:
    """Write the merged model into ``out``."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    model.merge_and_unload().save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
