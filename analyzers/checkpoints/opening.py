"""Opens the repository that a reference names: on the Hub or in its cache on this machine, a sample, a path, or in memory."""

from pathlib import Path
from typing import Literal

from analyzers.checkpoints.local import LocalRepository, sample_folder
from analyzers.checkpoints.reference import parse_reference, quoted
from analyzers.checkpoints.repository import Access, Repository
from analyzers.checkpoints.words import WORDS
from analyzers.core.errors import CheckpointNotFound, HubUnreachable
from analyzers.core.notes import Note
from analyzers.core.terminal import printable


class CachedRepository(LocalRepository):
    """A snapshot in this machine's Hub cache. ref, commit: as on the Hub."""

    def __init__(self, folder: Path, ref: str) -> None:
        super().__init__(folder)
        self.ref = ref
        self.commit = folder.name


def open_repository(text: str, access: Access) -> tuple[Repository, Note | None]:
    """Open the repository of a reference, with a note if the web page would resolve the reference differently.

    Raises InvalidReference, CheckpointNotFound, AccessDenied, LimitExceeded and the HubError family.
    """
    reference = parse_reference(text, access.local)
    if reference.kind == "local":
        bare = not reference.name.startswith(("./", "/"))
        return LocalRepository(reference.name), WORDS.note("local-path", path=printable(reference.name)) if bare else None
    if reference.kind == "memory":
        if reference.name not in access.memory:
            raise CheckpointNotFound(
                f"{quoted(reference.name)} was a model in the memory of the program that made the report: pass it again."
            )
        return access.memory[reference.name], None
    if reference.kind == "sample":
        return LocalRepository(sample_folder(reference.name), f"sample:{reference.name}"), None
    return open_hub_or_cache(reference.name, reference.revision, access)


def open_hub_or_cache(
    name: str, revision: str | None, access: Access, kind: Literal["models", "datasets"] = "models"
) -> tuple[Repository, Note | None]:
    """Open a repository like `hub_repository.open_hub`.

    If the Hub is unreachable and ``access`` is local, opens the cached snapshot and returns a note that says so.

    Raises as `hub_repository.open_hub` does.
    """
    # Local import: the Hub's client takes 0.2 s to import, and samples and local files do not need it.
    from analyzers.checkpoints.hub.hub_repository import cached_snapshot, open_hub

    try:
        return open_hub(name, revision, access, kind), None
    except HubUnreachable as error:
        if not access.local:
            raise
        folder = cached_snapshot(name, revision, kind)
        if folder is None:
            raise HubUnreachable(f"{error} This machine's cache has no snapshot of {name}{f'@{revision}' if revision else ''}.") from None
        ref = name if kind == "models" else f"{kind}/{name}"
        return CachedRepository(folder, ref), WORDS.note("cached", model=ref)
