"""Finds files whose names do not say that they hold weights: recognized by their first bytes, or large and of an unknown kind."""

import re

from analyzers.checkpoints.formats.recognition import OLD_MAGIC, Format, recognize
from analyzers.checkpoints.repository import Repository, read_range
from analyzers.checkpoints.weight_files.file_names import GGUF, PICKLED, SAFETENSORS, file_name
from analyzers.checkpoints.weight_files.not_read import SkippedFile
from analyzers.checkpoints.weight_files.other_formats import other_format
from analyzers.terminal import printable

_MOST = 32  # most files opened, the largest first: each is a request
_BEGINNING = 512
# First bytes that torch.save writes: now, and before 1.6 with protocol 2 and below.
_TORCH = (b"PK\3\4", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19", OLD_MAGIC)
_PICKLE = "a pickle of an unknown kind: save the state_dict of the model with safetensors.torch.save_file in the program that wrote it"
_LARGE = 1 << 20  # bytes; smaller files of an unknown kind are not listed
# Weight files are judged by their names; files of these kinds hold none.
_JUDGED = (*SAFETENSORS, GGUF, *PICKLED)
_OTHERS = re.compile(
    r"json\w*|txt|md|rst|ya?ml|toml|cfg|ini|csv|tsv|html?|xml|css|js|ts|py|pyc|ipynb|sh|cpp|cu|log|jinja2?|bib|tex|pdf|docx|pptx|xlsx"
    r"|epub|png|jpe?g|gif|webp|bmp|svg|ico|tiff?|mp[34]|wav|flac|ogg|m4a|webm|mov|avi|ttf|woff2?|parquet|arrow|so|dll|exe|whl|jar",
    re.IGNORECASE,
)
# Files of tokenizers and databases are binary and large without weights: only their content can show that they hold some.
_LARGE_OTHERS = re.compile(r"model|vocab|spm|bpe|tiktoken|mo|lmdb|mdb|db|sqlite\d?|faiss|index", re.IGNORECASE)
# Whole names of files without weights whose extension does not say so.
_KNOWN = re.compile(
    r"\..*|events\.out\.tfevents\..*|licen[cs]e|notice|readme|(use_)?policy|makefile|dockerfile|modelfile|merges|vocab|optimizer|scheduler",
    re.IGNORECASE,
)
_PICKLES = (".pkl", ".pickle", ".joblib")
_NO_WEIGHTS = re.compile(
    r"(vocab|token(s|izer)?|labels?(_encoder)?|scaler|random_states|rng_states?|config|args|optim(izer)?|stats)([_-]?\d+)?"
)


def unknown_files(repository: Repository, inside: str = "") -> list[SkippedFile]:
    """List files below ``inside`` that hold weights by their content, or may hold some by their size. Raises the errors of reads."""
    sizes = {path: size for path, size in repository.files.items() if path.startswith(inside) and size > len(GGUF) and _is_unknown(path)}
    found = []
    largest = sorted(sizes, key=lambda path: (-sizes[path], path))
    for path in largest[:_MOST]:
        file = repository.open(path)
        try:
            beginning = read_range(file, 0, min(file.size, _BEGINNING))
        finally:
            file.close()
        kind = recognize(beginning, sizes[path])
        if (path.endswith(_PICKLES) or kind is Format.PICKLED) and not beginning.startswith(_TORCH):
            found.append(SkippedFile(printable(path), _PICKLE))
        elif kind is not None:
            # A model saved by torch is a zip archive, but so are many other files.
            what = "a PyTorch file or another zip archive" if beginning.startswith(b"PK") else kind.value
            why = f"{what} by its content, which its name does not say: name the file itself, or rename it"
            found.append(SkippedFile(printable(path), why))
        elif sizes[path] >= _LARGE and b"\0" in beginning and not _LARGE_OTHERS.fullmatch(_ending(path)):
            found.append(SkippedFile(printable(path), "of an unknown kind, and large enough to hold weights"))
    for path in largest[_MOST:]:
        if sizes[path] >= _LARGE and not _LARGE_OTHERS.fullmatch(_ending(path)):
            found.append(SkippedFile(printable(path), "of an unknown kind, not looked into, and large enough to hold weights"))
    return sorted(found, key=lambda each: each.path)


def _is_unknown(path: str) -> bool:
    name, ending = file_name(path), _ending(path)
    if _OTHERS.fullmatch(ending) or _KNOWN.fullmatch(name) or (path.endswith(_PICKLES) and _NO_WEIGHTS.fullmatch(name.rpartition(".")[0])):
        return False
    return not path.endswith(_JUDGED) and other_format(path) is None


def _ending(path: str) -> str:
    return file_name(path).rpartition(".")[2] if "." in file_name(path) else ""
