"""Describes the library's state: of a contribution, of its items in numbers, of its dataset."""

from typing import Generic, Literal, TypeVar

from analyzers.records import Record

Item = TypeVar("Item")

State = Literal["saved here", "published"]


class Saved(Record, Generic[Item]):
    """A saved contribution. commit: the dataset's commit, if published; note: why it is not published although it should be."""

    item: Item
    state: State
    commit: str = ""
    note: str = ""


class Counts(Record):
    """The numbers of items.

    current: labels neither replaced nor hidden; unpublished: items waiting for the dataset, if there is one; quarantined: rows of the
    dataset that were refused.
    """

    labels: int
    current: int
    models: int
    contributors: int
    results: int
    flags: int
    quarantined: int
    unpublished: int


class LibraryState(Record):
    """The state of the library and its dataset.

    dataset: "" for none. restored: everything in the dataset at the start has been read. ephemeral: the disk does not survive a restart.
    head: the dataset's commit read last. problem: why nothing is added, published or backed up, as a sentence. quarantined: rows and files
    that were refused.
    """

    dataset: str
    restored: bool
    ephemeral: bool
    head: str
    problem: str
    quarantined: int
