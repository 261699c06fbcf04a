"""Opens the repository that a reference names: on the Hub, a sample, a path, or in memory."""

from analyzers.checkpoints.local import LocalRepository, sample_folder
from analyzers.checkpoints.reference import parse_reference, quoted
from analyzers.checkpoints.repository import Access, Repository
from analyzers.checkpoints.words import WORDS
from analyzers.core.errors import CheckpointNotFound
from analyzers.core.notes import Note
from analyzers.core.terminal import printable


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
    # Local import: the Hub's client takes 0.2 s to import, and samples and local files do not need it.
    from analyzers.checkpoints.hub.hub_repository import open_hub

    return open_hub(reference.name, reference.revision, access), None
