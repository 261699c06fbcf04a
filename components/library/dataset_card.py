"""Writes the card of the dataset: what it is, how to load it, the configurations that the Hub's viewer shows, and every column."""

from collections.abc import Collection
from pathlib import Path

from components.library.dataset_rows import FIELDS, TABLES, Table, known, path_of, to_parquet
from components.library.initial_labels import seed_labels
from components.library.schema import Flag, Label, Result

CARD = "README.md"
# The publisher keeps a card with this line current, and leaves any other alone.
MARK = "<!-- Mantissa keeps this card current. Delete this line to keep your own changes. -->"
_EXAMPLES = 3
_TEMPLATE = Path(__file__).with_name("templates") / "card.md"
_ABOUT: dict[Table, str] = {
    "labels": "What somebody says a model was trained in, with the evidence for it",
    "flags": "Doubts about labels, and decisions of moderators about them",
    "results": "Reports on public models, with the facts that lists show",
}
_KINDS = {str: "text", int: "integer", bool: "true or false", float: "number", list: "list of texts"}


def card_files(dataset: str, paths: Collection[str], contents: str) -> dict[str, bytes]:
    """Return the card, and an empty file for each table without files in ``paths``: a configuration without files cannot be loaded.

    contents: a sentence.
    """
    configs = [f"- config_name: {table}\n  data_files: {table}/*.parquet" for table in TABLES]
    configs[0] += "\n  default: true"
    text = _TEMPLATE.read_text(encoding="utf-8").replace("{configs}", "\n".join(configs))
    text = text.replace("{tables}", "\n".join(map(_section, TABLES))).replace("{name}", dataset)
    text = text.replace("{contents}", contents).replace("{mark}", MARK).replace("{examples}", _examples())
    bare = set(TABLES) - {table for table, _ in known(list(paths))}
    return {CARD: text.encode()} | {path_of(table, []): to_parquet(table, []) for table in TABLES if table in bare}


def _examples() -> str:
    rows = (f"| {each.model} | {each.precision} | {each.evidence_link} | {each.contributor} |" for each in seed_labels()[-_EXAMPLES:])
    return "\n".join(("| model | precision | evidence_link | contributor |", "| --- | --- | --- | --- |", *rows))


def _section(table: Table) -> str:
    fields = {"labels": Label.model_fields, "flags": Flag.model_fields, "results": Result.model_fields}[table]
    said = {name: field.description for name, field in fields.items()} | {"report": "the whole report, as JSON"}
    rows = "".join(f"| `{name}` | {_KINDS[kind]} | {said[name]} |\n" for name, kind in FIELDS[table].items())
    return f"## {table}\n\n{_ABOUT[table]}.\n\n| column | type | meaning |\n| --- | --- | --- |\n{rows}"
