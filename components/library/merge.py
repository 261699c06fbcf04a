"""Merging the small files of the dataset: a hundred thousand contributions must not be a hundred thousand files."""

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from analyzers import limits
from components.library.database import Database
from components.library.rows import TABLES, Table, known, path_of, result_row, take, to_parquet

if TYPE_CHECKING:
    from analyzers.checkpoints.hub import HubRepository


class Merged(NamedTuple):
    """One file that replaces the ``old`` ones."""

    path: str
    content: bytes
    old: tuple[str, ...]
    items: int


def plan(database: Database, repository: "HubRepository") -> Merged | None:
    """The next merge, one commit; None if no table has more than LIBRARY_FILES small files.

    Files with refused rows are left unchanged: they are not ours to rewrite. Raises HubError.
    """
    with database.read() as connection:
        whole = {path for (path,) in connection.execute("SELECT path FROM dataset_files WHERE refused = 0")}
    sizes = {path: repository.files[path] for path in repository.files if path in whole}
    for table in TABLES:
        small = sorted(
            (size, path) for of, path in known(list(sizes)) if of == table and (size := sizes[path]) <= limits.LIBRARY_SHARD_BYTES // 2
        )
        if len(small) > limits.LIBRARY_FILES:
            return _merged(table, _up_to(small, limits.LIBRARY_SHARD_BYTES), repository)
    return None


def _up_to(small: list[tuple[int, str]], most: int) -> tuple[str, ...]:
    """The smallest ones, ``most`` bytes in total."""
    chosen, total = list[str](), 0
    for size, path in small:
        if total + size > most and len(chosen) > 1:
            break
        chosen.append(path)
        total += size
    return tuple(chosen)


def _merged(table: Table, old: tuple[str, ...], repository: "HubRepository") -> Merged | None:
    rows: dict[str, dict[str, Any]] = {}
    for path in old:
        with closing(repository.open(path)) as file:
            for part in take(table, file):
                if part.refused:
                    return None
                found = [item.model_dump() for item in (*part.labels, *part.flags)]
                found += [result_row(result, text) for result, text in part.results]
                rows |= {row["id"]: row for row in found}
    ordered = sorted(rows.values(), key=lambda row: (row["created"], row["id"]))
    path = path_of(table, list(rows))
    return Merged(path, to_parquet(table, ordered), tuple(each for each in old if each != path), len(ordered))
