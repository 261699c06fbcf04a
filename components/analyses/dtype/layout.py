"""Lays out the passport, and asks the question of the first page."""

from collections.abc import Sequence

from analyzers.core.notes import Tile
from analyzers.dtype import DtypeReport
from components.analyses.dtype import plots
from components.analyses.question import Question
from components.result import labels, links
from components.result.layout import Figure, Layout, Tab, Table


def tiles(report: DtypeReport) -> list[Tile]:
    """Return the tiles of a report, with the training precision of the library's labels if there are any."""
    consensus = labels.consensus(report.checkpoint.ref)
    if consensus is None or not consensus.votes:
        return report.tiles()
    kind = "warning" if consensus.precision is None else "label"
    evidence = f" Evidence: {consensus.evidence}" if consensus.evidence else ""
    detail = f"{'Own label: ' * consensus.own}{consensus.sentence[:1].upper()}{consensus.sentence[1:]}.{evidence}"
    trained = Tile(label="Trained in", value=consensus.precision or "labels disagree", kind=kind, detail=detail, whole=True)
    return [trained if tile.label == trained.label else tile for tile in report.tiles()]


def library_links(report: DtypeReport) -> Sequence[tuple[str, str]]:
    """Return the link to the labels of a model that may have labels in the library."""
    if labels.consensus(report.checkpoint.ref) is None:
        return ()
    return [("Labels of this model, or add one", links.labels(report.checkpoint.ref))]


def narrower(report: DtypeReport) -> tuple[int, str] | None:
    """Return the bytes of a lossless copy of the whole model in fewer bytes and what is known of its values, or None if there is none."""
    held, request = report.narrower, report.request
    if not held or request.include or request.exclude or request.subfolder:
        return None
    known = f"{held} holds every value read bit for bit; values not read yet are read first, and if one does not fit, nothing is opened."
    return report.checkpoint.bytes - report.narrower_saves, known


LAYOUT = Layout(
    "Precision passport",
    (
        Tab(
            "Evidence",
            [
                Table("evidence"),
                Table("grids"),
                Figure(
                    "Spectrum of weight magnitudes", plots.spectrum, "Share of the values read per doubling; dashed: limits of the formats."
                ),
                Table("parts"),
                Table("shares"),
                Table("storage"),
            ],
        ),
        Tab(
            "Layers and tensors",
            [
                Figure("Largest magnitude by layer", plots.layers, "The largest weight of each role; dashed: the largest fp16 value."),
                Table("layers"),
                Table("tensors"),
                Table("buffers"),
            ],
        ),
        Tab(
            "Training",
            [
                Figure(
                    "Weights that a step can move",
                    plots.movable,
                    "A weight is frozen if adding and subtracting the update both round back to it; this bounds training without fp32 "
                    "master weights.",
                ),
                Table("untouched"),
                Figure(
                    "Among models of known training precision",
                    plots.among_models,
                    "Each point is a model whose training precision is known; dashed: the thresholds of the rule of thumb.",
                ),
            ],
        ),
        Tab("Quantization", [Table("quantization_roles"), Table("quantization_ignore"), Table("quantization")]),
    ),
    tiles=tiles,
    links=library_links,
    narrower=narrower,
)

QUESTION = Question(
    heading="What do this model's bytes prove?",
    about="Reads a sample of the weights (64 MB, whatever their size) and reports how they are stored, which formats they have provably "
    "passed through, in which precision the model was probably trained, and whether the weights fit fp16.",
    button="Inspect",
    examples={
        name: {"model": name}
        for name in (
            "sample:tiny-bf16-as-fp32",
            "sample:tiny-overflow",
            "google-t5/t5-small",
            "EleutherAI/pythia-1b",
            "meta-llama/Llama-2-7b-hf",
        )
    },
    front=("mode", "quantize"),
    less="quick mode, a smaller budget",
)
