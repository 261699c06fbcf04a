"""Downloads weights in a plain way: ``python -m tests.benchmarks.naive_download HOW REPOSITORY FOLDER [BYTES]``.

HOW "snapshot" is huggingface_hub's own download; "stream" is one HTTP stream per file, one after the other, written as it arrives, or
discarded if FOLDER is "-". It stops after BYTES.
"""

import json
import os
import sys
import time
from pathlib import Path


def stream(repository: str, folder: Path | None, most: int | None) -> int:
    """Download every weight file, or the first ``most`` bytes. Returns the number of bytes received."""
    import httpx2

    url = os.environ["HF_ENDPOINT"]
    received = 0
    with httpx2.Client(timeout=60) as client:
        listing = client.get(f"{url}/api/models/{repository}").raise_for_status().json()
        names = [each["rfilename"] for each in listing["siblings"] if each["rfilename"].endswith(".safetensors")]
        for name in names:
            with (
                client.stream("GET", f"{url}/{repository}/resolve/main/{name}", follow_redirects=True) as reply,
                (folder / name if folder else Path(os.devnull)).open("wb") as file,
            ):
                for piece in reply.raise_for_status().iter_raw():
                    file.write(piece)
                    received += len(piece)
                    if most is not None and received >= most:
                        return received
    return received


def snapshot(repository: str, folder: Path) -> int:
    """Download the whole repository with huggingface_hub; returns the bytes of its weights."""
    from huggingface_hub import snapshot_download

    snapshot_download(repository, local_dir=folder)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def main(how: str, repository: str, folder: str, most: str | None = None) -> None:
    """Print the bytes received and the seconds taken, including imports, as JSON."""
    start = time.perf_counter()
    if how == "snapshot":
        nbytes = snapshot(repository, Path(folder))
    else:
        nbytes = stream(repository, None if folder == "-" else Path(folder), int(most) if most else None)
    print(json.dumps({"bytes": nbytes, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main(*sys.argv[1:])
