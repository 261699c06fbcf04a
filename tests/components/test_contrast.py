"""Text has enough contrast on every ground, in both themes."""

import pytest

from components.appearance.theme import DARK, LIGHT


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        *((text, ground) for text in ("ink", "dim", "accent", "bad", "infer") for ground in ("bg", "card")),
        ("proof", "proof-bg"),
        ("infer", "infer-bg"),
        ("label", "label-bg"),
        ("bad", "bad-bg"),
        ("on-accent", "accent"),
    ],
)
def test_contrast(colours: dict[str, str], text: str, ground: str) -> None:
    lighter, darker = sorted((_luminance(colours[text]), _luminance(colours[ground])), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5
