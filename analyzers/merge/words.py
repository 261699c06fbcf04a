"""What a merge says, a template per code."""

from analyzers.core.words import Words

WORDS = Words(
    {
        "merged": "Wrote {out}: {bytes:size} in {to}, {tensors:#tensor}. Read back and compared with the sum in fp32, rounded once.",
        "unchanged": "Left unchanged by the adapter: {tensors:#tensor}.",
        "lost": (
            "In {to}, {changed_share:share} of {touched:#updated weight} differ from the base's; {lost_norm:share} of the update's norm is "
            "lost."
        ),
        "overflowed": "{weights:#weight} beyond the range of {to}, stored as infinite, in {names:names}: choose {instead}.",
        "copied": "Copied as they are, without comparing them with the weights: {files:names}.",
    }
)
