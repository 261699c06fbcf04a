"""Faults of a pickled file; `pickled_header.read_pickled` adds the file's name."""

# Advice for a file whose tensors cannot be read without the program that wrote it.
RESAVE = "in the program that wrote it, use safetensors.torch.save_model(model, 'model.safetensors')"


class Damaged(Exception):
    """The file contradicts itself or its format; the text ends the sentence "FILE is damaged: ..."."""


class Refused(Exception):
    """The file may be sound but is not read; the text ends a sentence that begins with the file's name."""


class Excess(Exception):
    """The file is larger than a limit; the text ends a sentence that begins with the file's name."""
