"""Describes the library's state: of a contribution, of its items in numbers, of its dataset."""

from typing import Generic, Literal, TypeVar

from analyzers.core.formatting import plural, size
from analyzers.core.records import Record

Item = TypeVar("Item")

State = Literal["saved here", "published"]


def state_of(commit: str) -> State:
    """Return the state of an item. commit: of the dataset, if it is published there."""
    return "published" if commit else "saved here"


class Saved(Record, Generic[Item]):
    """A saved contribution. commit: the dataset's commit, if published; note: why it is not published although it should be.

    proposal: a label that does not count until a contributor with a login adds the same.
    """

    item: Item
    state: State
    commit: str = ""
    note: str = ""
    proposal: bool = False


class Counts(Record):
    """The numbers of items.

    current: labels neither replaced nor hidden; proposals: those of them that do not count; labelled: models with labels that count;
    unpublished: items waiting for the dataset, if there is one; quarantined: rows
    of the dataset that were refused; measured: models with a passport or check; wasted: bytes that these could save; public_results:
    those that are not of samples; published: models whose figures the table of weights gives.
    """

    labels: int
    current: int
    models: int
    contributors: int
    results: int
    flags: int
    quarantined: int
    unpublished: int
    proposals: int
    labelled: int
    measured: int
    wasted: int
    public_results: int
    published: int

    @property
    def sentence(self) -> str:
        """Say what the library holds."""
        labels = f"the training precision of {plural(self.labelled, 'model')}, each with its evidence"
        proposals = f" (not counted: {plural(self.proposals, 'proposal')} without a login)" if self.proposals else ""
        saved = f": {size(self.wasted)} could be saved without changing a value" if self.wasted else ""
        measured = f"; passports or checks of {plural(self.measured, 'model')}{saved}" if self.measured else ""
        of = " of models on the Hub" if self.results else ""  # those of built-in samples are listed, and not counted
        results = f"; {plural(self.public_results, 'stored result')} in all" if self.public_results else f"; no stored results{of} yet"
        figures = f"the published weight figures of {plural(self.published, 'model')}"
        return f"The library holds {labels}{proposals}; {figures}{measured}{results}."


class LibraryState(Record):
    """The state of the library and its dataset.

    dataset: "" for none. restored: everything in the dataset at the start has been read. ephemeral: the disk does not survive a restart.
    head: the dataset's commit read last. problem: why nothing is added, published or backed up, as a sentence. quarantined: rows and files
    that were refused. own: labels of visitors without a login count, since the app is theirs.
    """

    dataset: str
    restored: bool
    ephemeral: bool
    head: str
    problem: str
    quarantined: int
    own: bool = False
