"""Runs language models: loading, prompts, a decoder as a list of functions, and the built-in samples."""

import logging

# transformers imports torchao if it is installed; torchao logs remarks, with paths, about kernels for other machines.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
