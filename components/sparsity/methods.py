"""Renders the sparsity section of the methods page: every definition, its limits and its source."""

from analyzers.core import limits
from analyzers.numerics.intervals import FEWEST
from analyzers.update_sparsity.published import SOURCE
from analyzers.update_sparsity.report import DEFAULT_ETA
from analyzers.update_sparsity.rows import TOPS
from analyzers.update_sparsity.spectral import LEADING, MASK_SHARE
from components.text import numbers
from components.text.render import render


def methods() -> str:
    """Render the section as HTML."""
    tops = ", ".join(f"{100 * top:g}%" for top in TOPS)
    values = {
        "power": numbers.power,
        "eta": DEFAULT_ETA,
        "source": SOURCE,
        "tops": tops,
        "leading": LEADING,
        "mask_share": MASK_SHARE,
        "fewest": f"{FEWEST:.0f}",
    }
    return render("sparsity/templates/methods.html", limits=limits, **values)
