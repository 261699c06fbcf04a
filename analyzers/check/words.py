"""The words of check: title and detail of each finding, by code, the answers, and the tiles."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analyzers.check.report import Finding, Level
from analyzers.core import limits
from analyzers.core.formatting import NOTHING, count, share, size
from analyzers.core.notes import Tile, Value
from analyzers.core.words import Words

if TYPE_CHECKING:
    from analyzers.check.report import CheckReport

FRONT = "findings"
_SHAPES = "{tensors:#tensor}, such as {name:name} with {shape:shape} instead of {expected:shape}. "
_OF_BASE = "{tensors:#tensor} of {base} with {values:#value} not in the model"
FINDINGS = {
    # values
    "weights-not-finite": "{nan:count} NaN and {inf:count} infinite in {tensors:#tensor}: go back to a checkpoint without any.",
    "values-not-readable": "{why} Save the model again, or quantize it again.",
    "stored-wider-than-needed": (
        "{tensors:#tensor} in fp32 with values that fit {formats:list} bit for bit, {bytes:count} bytes ({share:share}) less: "
        "mantissa shrink {model} --out FOLDER"
    ),
    "stored-twice": (
        "{tensors:#tensor} with the values of another, {bytes:count} bytes; {name:name} is {other:name}. Store them once, as mantissa "
        "shrink does with tied ones; if they should differ, the wrong ones were saved."
    ),
    "config-states-another-dtype": "config.json says {stated}, and most parameters are stored as {stored}. Correct one of the two.",
    "mostly-one-value": (
        "{tensors:#tensor} with at least half of the entries at exactly {values:list}: constants, or norms at the usual initial value. If "
        "they were trained, the updates may have been too small for their dtype."
    ),
    "tensors-of-zeros": "{tensors:#tensor} of nothing but zeros: never trained, not in use, or lost in a conversion.",
    "infinite-in-fp16": "{weights:#weight}, and config.json states {stated}: run it in bf16 or fp32.",
    "rows-not-updated": (
        "{rows:#row} exact in a narrower format, in tensors that are not: not updated since they were rounded to it, as of tokens that did "
        "not occur in training."
    ),
    "values-on-a-grid": "All values of {tensors:#tensor} lie on a quantizer's grid ({grids:list}): {bytes:count} bytes less as codes.",
    # files
    "index-disagrees-with-files": (
        "{tensors:#tensor} on which index and files disagree, such as {name:name}: transformers loads all tensors of the "
        "files, other loaders fail or miss some. Save the model again."
    ),
    "shards-differ": "{tensors:#tensor}; {name:name} is another in {file:name} than in {other:name}: transformers loads the last shard's.",
    "files-not-read": (
        "{tensors:#file} that may hold weights, not in the index or folder of the model, unreadable, or in a format that is not read: "
        "nothing is said about the values. Name the file or its folder to check it alone."
    ),
    "copies-not-read": "{tensors:#file} that by name only repeat the weights: neither read nor compared with them.",
    "pickled-weights": "{tensors:#weight file} that can run code when loaded: save the model with safe_serialization=True, as safetensors.",
    # loading
    "config-missing": "transformers needs config.json next to the weights: save the whole model with save_pretrained.",
    "config-refused": "transformers refuses config.json or generation_config.json: {why:name}. Correct it.",
    "refused-by-transformers": "As {model}, transformers refuses it: {why:name}. Save the model again with save_pretrained.",
    "file-refused": "transformers does not load {files:names}: {why}. Save the model again with save_pretrained.",
    "weights-not-found": (
        "transformers looks for {sought:names}, or the index of one, next to config.json, and finds {files:names}: rename or move them, or "
        "save the model again with save_pretrained."
    ),
    "weights-missing": (
        "{parameters:#parameter} of {model}, initialised at random, and {buffers:#buffer}, such as {name:name}: save all of them again, or "
        "correct config.json."
    ),
    "tensors-without-values": "{empty:count} of {tensors:#tensor}, as a sharded run saves what it did not gather: save all of them again.",
    "shapes-differ-from-the-model": _SHAPES + "transformers refuses to load it as {model}: correct config.json, or save the model again.",
    "quantization-not-stated": (
        "{tensors:#quantized tensor}, and config.json has no quantization_config: transformers takes codes for weights, or initialises the "
        "weights at random. Write the quantizer's settings into config.json."
    ),
    "weights-ignored": "{tensors:#stored tensor} without a place in {model}: transformers ignores them.",
    # what engines trip over
    "codes-without-scale": (
        "{tensors:#tensor} of quantized codes, such as {name:name}, without {part:name}: engines refuse them or compute with codes. Save "
        "the scales with the codes, or quantize again."
    ),
    "codes-of-the-base": "{tensors:#tensor} with the codes of {base}, {bytes:count} bytes compared: copy their scales from there.",
    "scales-that-do-not-fit": (
        "{tensors:#tensor} of quantized codes with scales or other parts of a wrong shape or dtype, such as {name:name} with {parts:list}: "
        "engines refuse them or compute other weights. Quantize again."
    ),
    "settings-against-shapes": (
        "The quantization settings state {stated:list}, and the shapes of {tensors:#tensor}, such as {name:name}, say {made}: engines read "
        "the codes by the settings. Correct them, or quantize again."
    ),
    "scales-unusable": (
        "{tensors:#tensor} of scales with unusable values, of {read:count} values read: {zero:count} zero (over {codes:count} codes that "
        "are not), {negative:count} negative, {subnormal:count} subnormal, {not_finite:count} not finite. Calibrate or quantize again."
    ),
    "halves-scaled-apart": (
        "{modules:#module} whose fused parts ({parts}) have different global scales, such as {low:magnitude} and {high:magnitude}: engines "
        "that fuse them keep one. Quantize them together."
    ),
    "codes-in-place-of-weights": (
        "{tensors:#tensor} all of whose values are codes of {form}, up to {largest:magnitude}: the scale was never applied. Dequantize "
        "again, with the scales."
    ),
    "ignored-without-tensor": (
        "{tensors:#entry|entries} without a tensor, of {all:count} in the quantization settings, such as {name:name}: engines then expect "
        "quantized weights where plain ones are stored. Name the modules as the files do."
    ),
    "plain-but-not-ignored": (
        "{tensors:#matrix|matrices} of linear layers in plain floats, such as {name:name}, that no entry of the quantization settings "
        "excludes: engines expect codes. Add them to the list."
    ),
    "parts-missing": "config.json promises {promised} ({key}); stored: {found}. Save all of them, or correct {key}.",
    "shards-missing": (
        "{files:#file} of {parts:count} that the names of the shards count, such as number {first}: the index was rebuilt without them. "
        "Upload all of them."
    ),
    "kept-in-fp32-but-stored-narrower": (
        "{tensors:#tensor} that transformers keeps in fp32, such as {name:name}, in {dtype:dtype} with {distinct:#distinct value}: "
        "save them in fp32 from weights that were never rounded."
    ),
    "rounded-though-kept-in-fp32": (
        "{tensors:#tensor} that transformers keeps in fp32, such as {name:name}, rounded to {dtype:dtype}: {before:#distinct value} of the "
        "base became {distinct:count}. Save them in fp32."
    ),
    "loaded-in-another-dtype": (
        "Most weights are stored as {stored}, and config.json states {stated:list}: transformers 5 loads them in {loaded}, transformers 4 "
        "in float32 unless asked otherwise. State {stored} alone."
    ),
    "companions-differ": (
        "Other than in {base}: {differ:list}. Save the tokenizer and the settings of generation with the model, unless that was intended."
    ),
    "tokens-never-trained": (
        "{tokens:#token that ends or structures|tokens that end or structure} a text, such as {token:name}, with a row that is zero or one "
        "of {rows:#equal row}: never trained. Train them, or name a token that was."
    ),
    # against the base
    "tensors-missing": _OF_BASE + ": save all of it.",
    "tensors-left-out": _OF_BASE + ", which loads without them.",
    "shapes-differ-from-the-base": _SHAPES + "{base} has the latter: it is another architecture, or the model was cut or converted.",
    "unchanged-from-the-base": (
        "{values:#value} compared, all equal to those of {base} but for rounding: nothing was trained, or the wrong file was saved."
    ),
    "layers-moved": "Layer {layer} of {base} is layer {here} of the model: if that was not intended, the layers were saved wrongly.",
    "scaled-from-the-base": (
        "{tensors:#tensor} with the values of {base} times a factor or plus a constant, as where a scale is lost or applied twice, such as "
        "{name:name} (factor {factor:magnitude}, plus {offset:magnitude}): undo it, or save them again."
    ),
    "reordered-from-the-base": (
        "{tensors:#tensor} with values of {base} in another order, or those of another of its tensors, such as {name:name}: if that was "
        "not intended, they were saved wrongly."
    ),
    "other-values-than-the-base": (
        "{tensors:#tensor} with other values at the places of {base}, such as {name:name}: initialised anew, overwritten, or another "
        "model's. Save them again, if that was not intended."
    ),
    "another-layout": "{tensors:#tensor} with the names of {base} and its values in another layout ({form}): check the conversion.",
    "extra-tensors": "{tensors:#tensor} with {values:#value} that {base} does not have.",
    "unrelated-to-the-base": "{tensors:#tensor} with other values than {base}, in no relation to them: name the one it was trained from.",
    "card-names-another-base": "The card names {stated:names}, and the weights come from {parents:names}. Correct one of the two.",
    "card-names-an-unrelated-base": "The card names {stated:names}, and the weights show no relation to it. Correct one of the two.",
}
"""Template of each finding, by its code, which as words is the title: what was found, in numbers, then the remedy."""
STATES = {
    "as-claimed": "It loads and is what it claims. {answer}",
    "loads": "It loads. {answer}",
    "does-not-load": "It does not load as it is. {answer}",
    "unjudged": "{answer} How it loads was not judged in full.",
}
"""What transformers makes of it, around the rest of the answer."""
KINDS = 3  # most kinds of findings that an answer names
_FOUND = "{found:list}: {kinds:list}."
WORDS = Words(
    {
        # the answer, by the gravest level
        "errors": _FOUND,
        "warnings": _FOUND,
        "remarks": _FOUND,
        "nothing-found": "Nothing found in {tensors:#tensor}, {bytes:size}.",
        "nothing-in-part": "Nothing found in what was read or compared.",
        # advice
        "fix-errors": "Fix the errors before anyone loads this checkpoint; each finding says how.",
        "shrink": "Save it with mantissa shrink: {bytes:size} less, and no value changes.",
        "heed-warnings": "Fix what the warnings name before you publish it; each says how.",
        "try-loading": "Load it before you rely on it: a note says what was not judged.",
        "look-further": "Look at what was not read or compared before you rely on it; in the rest nothing needs to change.",
        "nothing-to-change": "Nothing needs to change.",
        # what was not judged
        "loading-not-judged": "Whether transformers loads it was not judged: {why}",
        "class-instead": (
            "config.json names the class {named:name}, which transformers does not have for this model_type: judged as {model}, which its "
            "AutoModel takes. No code of the repository was run."
        ),
        "no-values-judged": "No values were judged: {why}",
        "not-compared": "Not compared with {base}: none of the weights could be decoded.",
        "shrinking-not-judged": "Whether it could be stored in fewer bytes was not judged: {why}",
        "card-not-compared": "The card's base_model was not compared: {why}",
        "entries-not-tried": (
            "{entries:#entry|entries} of {all:count} in the quantization settings not judged: longer than {longest:count} characters, "
            "beyond the first {most:count}, or beyond {seconds:number} seconds of matching."
        ),
        **FINDINGS,
    }
)


def finding(rule: str, level: Level, code: str, names: Sequence[str] = (), saving: int = 0, /, **values: Value) -> Finding:
    """Make a finding. names: of the tensors or files at fault; values: fill the code's template, beside their number and the first one."""
    of_names: dict[str, Value] = {"tensors": len(names), "name": names[0]} if names else {}
    values = of_names | values
    return Finding(
        rule=rule,
        level=level,
        code=code,
        title=code.replace("-", " ").capitalize(),
        detail=WORDS.text(code, values),
        values=values,
        saving_bytes=saving,
        tensors=tuple(names[: limits.REPORT_TENSORS]),
    )


def tiles(report: "CheckReport") -> list[Tile]:
    """Return the findings of each level, and the bytes that could be saved."""
    saved, stored = report.saving_bytes, report.checkpoint.bytes
    of = f"{share(saved / stored) if stored else NOTHING} of {stored:,} bytes of tensors, without a change of any value."
    levels: list[tuple[str, Level]] = [("Errors", "error"), ("Warnings", "warning"), ("For information", "info")]
    return [
        *(Tile(label=label, value=count(report.count(level)), kind="fact", detail=_titles(report, level)) for label, level in levels),
        *([Tile(label="Could be saved", value=size(saved), kind="proof", detail=of)] if saved else []),
    ]


def _titles(report: "CheckReport", level: Level) -> str:
    titles = dict.fromkeys(each.title for each in report.findings if each.level == level)
    return f"{'; '.join(titles)}." if titles else ""
