"""No code reads a sentence: facts are codes with values, and words are made of them last."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Names of what holds sentences, as variables and as fields.
SENTENCES = {
    "advice", "caption", "conclusion", "detail", "explanation", "headline", "note", "notes", "reach", "reason", "reasons", "remark",
    "remarks", "said", "sentence", "sentences", "statement", "statements", "suffix", "title",
}  # fmt: skip
# Methods that look into a text or cut it, and functions of `re` that do.
METHODS = {
    "startswith", "endswith", "replace", "partition", "rpartition", "split", "rsplit", "removeprefix", "removesuffix", "find", "index",
    "count", "casefold", "lower",
}  # fmt: skip
PATTERNS = {"match", "search", "fullmatch", "sub", "split", "findall", "finditer"}
# Files in which these names are other texts: SQL, stored JSON, a pull request's title, an error of a library.
OTHERS = {
    "analyzers/language_models/loading.py",
    "components/pull_request.py",
}


def reads(source: str) -> Iterator[int]:
    """Yield the lines that compare, search or cut a sentence."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            texts = [node.func.value] * (node.func.attr in METHODS) + node.args * (node.func.attr in PATTERNS)
            if any(map(holds_words, texts)):
                yield node.lineno
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            left, right = node.left, node.comparators[0]
            if isinstance(left, ast.Constant) and isinstance(left.value, str) and holds_words(right):
                yield node.lineno


def holds_words(node: ast.expr) -> bool:
    """Return whether an expression is a sentence, by its name: ``report.statement``, ``note.text``, ``notes[0]``, ``headline(report)``."""
    match node:
        case ast.Attribute(attr="text", value=value):
            return holds_words(value)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in SENTENCES
        case ast.Subscript(value=value) | ast.Call(func=value):
            return holds_words(value)
    return False


def test_no_code_reads_a_sentence() -> None:
    files = [path for folder in ("analyzers", "components", "mantissa") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)) for path in files if any(reads(path.read_text(encoding="utf-8")))}
    assert found == OTHERS


def test_reading_a_sentence_is_noticed() -> None:
    for source in ("note.startswith('The index ')", "'rank' in said[0]", "re.split(r'\\. ', report.statement)", "note.text.endswith('.')"):
        assert list(reads(source)) == [1]
    for source in ("note.code == 'index'", "title.join(parts)", "name.startswith('a')", "'x' in names"):
        assert not list(reads(source))
