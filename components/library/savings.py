"""Reads from a report how many bytes the files of a model have, and how many of them could be saved."""

from analyzers.core.untrusted_json import parse_json

_NARROW = ("bf16", "fp16")


def savings(report: str | bytes) -> tuple[int | None, int | None]:
    """Return the bytes of a model's files, and how many fewer they need for the same values; None for what a report does not say.

    A report of check says both. One of dtype counts float32 tensors whose values all fit a 16-bit format. Validating the whole report would
    take ten times as long.
    """
    try:
        said = parse_json(report)
        if "saving_bytes" in said:
            wasted = int(said["saving_bytes"])
        else:
            narrow = [row for row in said["tensors"] if row["dtype"] == "F32" and 1 in (row["representable"][name] for name in _NARROW)]
            wasted = sum(2 * int(row["parameters"]) for row in narrow)
        return int(said["checkpoint"]["bytes"]), wasted
    except (ValueError, LookupError, TypeError, AttributeError):  # reports of the dataset are untrusted, or of another version
        return None, None
