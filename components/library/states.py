"""What the library says about itself: the state of a contribution, numbers of items, the state of its dataset."""

from typing import Generic, Literal, TypeVar

from analyzers.data import Data

Item = TypeVar("Item")

State = Literal["saved here", "published"]


class Saved(Data, Generic[Item]):
    """A saved contribution. commit: of the dataset, if published; note: why it is not published, if it should be."""

    item: Item
    state: State
    commit: str = ""
    note: str = ""


class Counts(Data):
    """Numbers of items.

    current: labels neither replaced nor hidden; unpublished: items waiting for the dataset, if there is one; quarantined: rows of it that
    were refused.
    """

    labels: int
    current: int
    models: int
    contributors: int
    results: int
    flags: int
    quarantined: int
    unpublished: int


class LibraryState(Data):
    """The state of the library and its dataset.

    dataset: "" for none. restored: everything that the dataset held at the start was read. ephemeral: the disk does not survive a restart.
    head: the dataset's commit read last. problem: why nothing is added, published or backed up, as a sentence. quarantined: rows and files
    that were refused.
    """

    dataset: str
    restored: bool
    ephemeral: bool
    head: str
    problem: str
    quarantined: int
