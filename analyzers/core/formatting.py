"""Formats numbers for people, on the page and in a terminal: few digits, thousands separated, with units; and parses byte sizes."""

import math
import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from analyzers.core.errors import InvalidRequest

_PARAMETERS = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_BYTE_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_POWER = re.compile(r"(?<![\w.])(2|10)\^(-?\d+(?:,\d{3})*)")
_EXPONENT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-])0*(\d+)(?!\w)")
NOTHING = "–"


def count(value: int) -> str:
    """Format an exact count with thousands separated: ``29,811,402``."""
    return f"{value:,}"


def plural(value: int, one: str, many: str = "") -> str:
    """Format a count with its noun: ``1 tensor``, ``291 tensors``; many: the plural if it does not end in s."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def abbreviated(commit: str, digits: int) -> str:
    """Return the first digits of a commit; for BASE+ADAPTER those of each part."""
    return "+".join(part[:digits] for part in commit.split("+"))


def listed(words: Sequence[str]) -> str:
    """Join words: ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def rounded(value: float, digits: int = 3, power: int = 0) -> float:
    """Round ``value`` times 10^power to significant digits as its decimal text reads, halves away from zero.

    So 0.8945 becomes 0.895 and 0.145 in percent 15 of two digits, although the binary numbers, or their products, are below the half.
    """
    return float(_decimal(value, digits, power))


def _decimal(value: float, digits: int = 3, power: int = 0) -> Decimal:
    return Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal(Decimal(str(value)).scaleb(power))


def fixed(value: float, decimals: int, power: int = 0) -> str:
    """Format a finite ``value`` times 10^power with a number of decimals, rounded like `rounded`: ``0.895``, ``1,235``."""
    return f"{Decimal(str(value)).scaleb(power).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP):,f}"


def parameters(value: int) -> str:
    """Format a number of parameters to three digits: ``6.74 B``; exact below a million."""
    return _scaled(value, _PARAMETERS, f"{value:,}")


def size(value: int) -> str:
    """Format a number of bytes to three digits in decimal units: ``13.5 GB``; exact below a thousand."""
    return _scaled(value, _BYTES, f"{value:,} B")


def parse_bytes(text: str) -> int:
    """Parse ``64MB``, ``1.5 GiB`` or ``2,000,000``; decimal and binary units, in any case. Raises InvalidRequest."""
    match = re.fullmatch(r"\s*(\d{1,3}(?:,\d{3}){1,4}|\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", text, re.ASCII)
    unit = _BYTE_UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise InvalidRequest(f"The budget must be a number of bytes such as 64MB, 1.5GB or 2000000, not {text[:40]!r}.")
    return int(float(match[1].replace(",", "")) * unit)


def share(value: float | None) -> str:
    """Format a share as a percentage, ``12.5%``. Only exact values give 0% and 100%: ``99.9998%``, ``0.0015%``."""
    if value is None:
        return NOTHING
    percent = float(Decimal(str(value)).scaleb(2))
    if percent in (0, 100):
        return f"{percent:.0f}%"
    if 0 < percent < 1e-4:
        return f"{rounded(value, 2, 2):.1e}%".replace("e-0", "e-")
    if 0 < percent < 0.01 or (percent > 99.9 and value < 1):
        digits = min(12, 1 - math.floor(math.log10(min(percent, 100 - percent))))
        return f"{fixed(value, digits, 2)}%"
    return f"{rounded(value, 3, 2):,.0f}%" if percent >= 1000 else f"{rounded(value, 3, 2):.3g}%"


def between(interval: Any) -> str:
    """Format an interval of shares, of whatever has ``low`` and ``high``: ``12% to 14.5%``."""
    return NOTHING if interval is None else ends(interval.low, interval.high)


def ends(low: float | None, high: float | None) -> str:
    """Format an interval of shares, given by its ends."""
    return NOTHING if low is None or high is None else f"{share(low)} to {share(high)}"


def magnitude(value: float | None) -> str:
    """Format a number of any size to three digits: ``17.2``, ``65,504``, ``3.1e-5``."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        return fixed(value, 0) if abs(rounded(value)) >= 1000 else f"{rounded(value):.3g}"
    mantissa, exponent = f"{_decimal(value):.2e}".split("e")  # rounded up, the largest float64 is beyond float64
    return f"{mantissa}e{int(exponent)}"


def cosine(value: float | None) -> str:
    """Format a cosine with three decimals: ``0.860``, ``-0.018``."""
    return NOTHING if value is None else fixed(value, 3).replace("-0.000", "0.000")


def power(exponent: int, base: int = 2) -> str:
    """Format a power with a superscript exponent: ``2⁻¹⁴``."""
    return f"{base}{str(exponent).translate(_SUPERSCRIPTS)}"


def powers(text: str) -> str:
    """Normalize the numbers in a trusted sentence: ``2^-18`` becomes 2⁻¹⁸, ``3.727e+05`` 3.727e5, ``fp8_e4m3`` fp8 e4m3."""
    text = _POWER.sub(lambda found: found[1] + found[2].replace(",", "").translate(_SUPERSCRIPTS), text)
    text = _EXPONENT.sub(lambda found: f"{found[1]}e{'-' if found[2] == '-' else ''}{found[3]}", text)
    return re.sub(r"\bfp8_(e4m3|e5m2)\b", r"fp8 \1", text)


def shape(axes: Sequence[int]) -> str:
    """Format the shape of a tensor: ``4096 x 64``."""
    return " x ".join(map(str, axes)) or NOTHING


def duration(seconds: float) -> str:
    """Format a time span: ``40 ms``, ``2.8 s``, ``8 min``, ``4 min 10 s``, ``1 h 5 min``."""
    if seconds < 0.1:
        return f"{max(1, round(seconds * 1000))} ms"
    if seconds < 9.95:
        return f"{fixed(seconds, 1)} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    large, small = divmod(whole, 60) if whole < 3600 else divmod(whole // 60, 60)
    units = ("min", "s") if whole < 3600 else ("h", "min")
    return f"{large} {units[0]}" + (f" {small} {units[1]}" if small else "")


def day(stamp: str) -> str:
    """Format an ISO timestamp in UTC to the minute: ``2026-11-21 23:58 UTC``."""
    return f"{stamp[:10]} {stamp[11:16]} UTC"


def _scaled(value: int, units: tuple[tuple[float, str], ...], small: str) -> str:
    for scale, unit in units:
        # a value that would be rounded to 1000 of the smaller unit (999,950 kB) takes the larger unit
        if value >= scale * 0.9995:
            scaled = value / scale
            return f"{fixed(scaled, 0)} {unit}" if scaled >= 1000 else f"{_three_digits(scaled)} {unit}"
    return small


def _three_digits(value: float) -> str:
    text = f"{rounded(value):#.3g}"
    return text.rstrip(".").removesuffix(".00") if "e" not in text else fixed(value, 0)
