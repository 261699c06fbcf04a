"""Running a language model: loading, prompts, capture, where its neurons are, built-in samples."""

import logging

# transformers imports torchao where it is installed, which has remarks, with paths, on kernels of other machines.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
