"""Words for what each rule looks for and found."""

from analyzers.check.report import CheckReport, Rule

RULES: dict[Rule, str] = {
    "loads": "A config.json or files that transformers refuses; tensors that are missing for the architecture of config.json, that it "
    "does not know, or that have another shape. What could not be judged is named in a note.",
    "empty": "A checkpoint or tensors without a single value.",
    "not-read": "Files that may hold weights and were not read: for information where they only repeat others, by their names.",
    "non-finite": "Weights that are NaN or infinite.",
    "index": "An index of the shards that says something else than the files.",
    "upcast": "fp32 or fp64 tensors whose values all fit a narrower format bit for bit, where at least one is proven to come from there.",
    "stored-twice": "Matrices that repeat another one byte for byte, such as an LM head that is tied to the embedding.",
    "config-dtype": "A dtype in config.json that is not that of most parameters.",
    "untouched": "Norms with at least half of their entries at exactly the initial value, and tensors that hold one value throughout.",
    "zero-tensor": "Tensors of zeros, other than biases.",
    "pickled": "Weights in files that can run code when they are loaded.",
    "fp16-overflow": "Weights that become infinite in fp16: a warning where config.json asks for fp16, else for information.",
    "fossil-rows": "Rows still exact in a narrower format while the rest of their tensor is not: training did not reach them.",
    "missing": "Tensors of the base that the model lacks.",
    "misshapen": "Tensors with another shape than in the base.",
    "unchanged": "A model all of whose values are those of the base, but for their rounding.",
    "replaced": "Tensors or layers that have nothing to do with the base, while the others have.",
    "extra": "Tensors that the base does not have.",
    "base-mismatch": "A model card whose base_model is not among the models that the weights come from.",
}
WITH_BASE: frozenset[Rule] = frozenset({"missing", "misshapen", "unchanged", "replaced", "extra", "base-mismatch"})


def outcome(report: CheckReport, rule: Rule) -> str:
    """Return what a rule found, in a word or two."""
    if rule in WITH_BASE and report.base is None:
        return "no base"
    levels = [each.level for each in report.findings if each.rule == rule]
    return levels[0] if levels else "nothing" if report.whole else "nothing in what was read"
