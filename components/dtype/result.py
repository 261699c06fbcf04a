"""Lays out the passport."""

from analyzers.dtype_detection import DtypeReport
from components.dtype import plots
from components.dtype.form import permalink
from components.dtype.labelled_models_plot import among_models
from components.dtype.several_models import overview
from components.dtype.tiles import labels, tiles
from components.results.answer import layout_of, short_table, table
from components.results.copy_offer import CopyOffer, on_hub
from components.results.layout import Caption, Plot, Tab


def copy_offer(report: DtypeReport) -> CopyOffer | None:
    """Offer to store the model in the format that holds every value read of all its tensors, if there is one."""
    held, request = report.narrower, report.request
    if not held or request.include or request.exclude or request.subfolder or not on_hub(report.checkpoint):
        return None
    known = f"{held} holds every value read bit for bit; values not read yet are read first, and if one does not fit, nothing is opened."
    return CopyOffer(report.checkpoint, report.checkpoint.bytes - report.narrower_saves, known, held)


def _drawable(report: DtypeReport) -> bool:
    return bool(report.exponents)


RESULT = layout_of(
    "Precision passport",
    (
        Tab(
            "Evidence",
            [
                short_table(DtypeReport, "evidence"),
                short_table(DtypeReport, "grids"),
                short_table(DtypeReport, "parts"),
                short_table(DtypeReport, "shares"),
                short_table(DtypeReport, "storage"),
            ],
        ),
        Tab(
            "Magnitudes",
            [
                Plot("Weight magnitudes", plots.spectrum, _drawable),
                Plot("Largest magnitude by layer", plots.layers, _drawable),
                Caption("Each point is a model whose training precision is known. Dashed: the thresholds of the rule of thumb."),
                Plot("Among models of known training precision", lambda report: among_models([report])),
            ],
        ),
        Tab(
            "Movable",
            [
                Caption(
                    "A weight is frozen if adding and subtracting the update both round back to it. That bounds what training without fp32 "
                    "master weights can do; gradients and the optimizer decide the rest."
                ),
                Plot("Weights that a step can move", plots.movable),
                short_table(DtypeReport, "untouched"),
            ],
            lambda report: bool(report.movable),
        ),
        Tab(
            "Quantization",
            [
                Caption("The error of the weights alone: what it does to the output also depends on the activations."),
                short_table(DtypeReport, "quantization_roles"),
                short_table(DtypeReport, "quantization_ignore"),
                table(DtypeReport, "quantization"),
            ],
            lambda report: bool(report.quantization_roles),
        ),
        Tab("Tensors", [table(DtypeReport, "tensors")]),
    ),
    permalink=permalink,
    tiles=tiles,
    more=labels,
    overview=overview,
    copy=copy_offer,
)
