"""Files whose names do not say that they hold weights: recognized by their first bytes, or large and of an unknown kind."""

import re

from analyzers.checkpoints.content import recognize
from analyzers.checkpoints.not_read import SkippedFile
from analyzers.checkpoints.other_formats import other_format
from analyzers.checkpoints.repository import Repository, read_range
from analyzers.checkpoints.weight_names import GGUF, PICKLED, SAFETENSORS, file_name
from analyzers.terminal import printable

_MOST = 32  # files looked into, the largest first: each is a request
_BEGINNING = 512
_LARGE = 1 << 20  # bytes of a file of an unknown kind that is named
# Weight files are judged by their names; files of these kinds hold none.
_JUDGED = (*SAFETENSORS, GGUF, *PICKLED)
_OTHERS = re.compile(
    r"json\w*|txt|md|rst|ya?ml|toml|cfg|ini|csv|tsv|html?|xml|css|js|ts|py|pyc|ipynb|sh|cpp|cu|log|lock|jinja2?|bib|tex|pdf|docx|pptx|xlsx"
    r"|epub|png|jpe?g|gif|webp|bmp|svg|ico|tiff?|mp[34]|wav|flac|ogg|m4a|webm|mov|avi|ttf|woff2?|parquet|arrow|lmdb|mdb|db|sqlite|faiss"
    r"|index|so|dll|exe|whl|jar|vocab|spm|bpe|tiktoken|mo",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(
    r"^\.|tfevents|token|vocab|merges|sentencepiece|spiece|optim|licen[cs]e|notice|readme|policy|makefile|dockerfile|modelfile",
    re.IGNORECASE,
)


def unknown_files(repository: Repository, inside: str = "") -> list[SkippedFile]:
    """Files below ``inside`` that hold weights by their content, or may hold some by their size. Raises the errors of reads."""
    sizes = {path: size for path, size in repository.files.items() if path.startswith(inside) and size > len(GGUF) and _is_unknown(path)}
    found = []
    for path in sorted(sizes, key=lambda path: (-sizes[path], path))[:_MOST]:
        file = repository.open(path)
        try:
            beginning = read_range(file, 0, min(file.size, _BEGINNING))
        finally:
            file.close()
        kind = recognize(beginning, sizes[path])
        if kind is not None:
            why = f"{kind.value} by its content, which its name does not say: name the file itself, or rename it"
            found.append(SkippedFile(printable(path), why))
        elif sizes[path] >= _LARGE and b"\0" in beginning and not path.endswith(".model"):  # of a tokenizer
            found.append(SkippedFile(printable(path), "of an unknown kind, and large enough to hold weights"))
    return sorted(found, key=lambda each: each.path)


def _is_unknown(path: str) -> bool:
    name = file_name(path)
    _, dot, ending = name.rpartition(".")
    others = bool(dot and _OTHERS.fullmatch(ending)) or _NO_MODEL.search(name) is not None
    return not others and not path.endswith(_JUDGED) and other_format(path) is None
