"""Explains which optional libraries an installation lacks, for questions that need one of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from analyzers.core.errors import MissingExtra

# Library -> the smallest extra of pyproject.toml that contains it.
EXTRAS = {
    **dict.fromkeys(("jinja2", "pandas", "plotly"), "plots"),
    **dict.fromkeys(("accelerate", "safetensors", "tokenizers", "torch", "torchao", "transformers"), "models"),
    "pyarrow": "scan",
    "distributed": "cluster",
    **dict.fromkeys(("fastapi", "gradio", "markdown_it", "mcp", "PIL", "psutil", "starlette", "uvicorn"), "app"),
}


@contextmanager
def extras_explained() -> Iterator[None]:
    """Turn the failed import of an extra's library into MissingExtra, one sentence with the line for pip."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").split(".")[0]
        if library not in EXTRAS or find_spec(library) is not None:
            raise
        raise MissingExtra(f"This needs {library}, which is not installed: pip install 'mantissa[{EXTRAS[library]}]'.") from None
