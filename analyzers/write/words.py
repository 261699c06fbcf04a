"""What a shrink and a merge say, a template per code."""

from analyzers.core.words import Words

WORDS = Words(
    {
        "smaller": "Wrote {out}: {after:size}, {saved:size} ({share:share}) less. Read back and compared: no value has changed.",
        "gguf": "Nothing was written: a GGUF file is stored in the types that its maker chose.",
        "quantized": "Nothing was written: the weights are quantized ({method}).",
        "narrow": "Nothing was written: no tensor is stored as fp32.",
        "needed": "Nothing was written: each of {tensors:#tensor} in fp32 has values that {formats} cannot hold.",
        "weights-only": "Of {files:names} only the weights were stored: an optimizer and the like are left out.",
        "copied": "Copied as they are, without comparing them with the weights: {files:names}.",
        "not-asked": "Which tensors transformers keeps in fp32 is not known, so none was left alone for that: {why}",
        "merged": "Wrote {out}: {bytes:size} in {to}, {tensors:#tensor}. Read back and compared with the sum in fp32, rounded once.",
        "lost": (
            "In {to}, {changed_share:share} of {touched:#updated weight} differ from the base's; {lost_norm:share} of the update's norm is "
            "lost."
        ),
        "overflowed": "{weights:#weight} beyond the range of {to}, stored as infinite, in {names:names}: choose {instead}.",
    }
)
