"""What the readers of checkpoints remark, a template per code."""

from analyzers.core.words import Words

WORDS = Words(
    {
        # which files were read
        "local-path": "{path:name} was read on this machine, not on the Hub.",
        "cached": "{model:name} was read from this machine's Hub cache, which has only what was downloaded: the Hub was not reached.",
        "unreadable-json": "{file:name} is too large or not valid JSON of the expected form, and was ignored.",
        "folders": "Weights of {folders:names} were read together: name one folder to read it alone.",
        "widest-gguf": "Of {files:#GGUF file} the widest was read, {path:name}.",
        "same-names": "{files:names} hold tensors of the same names, as several models do: all count, under names with the file.",
        # what the index says
        "index-wrong-files": "The index and the files disagree on {tensors:#tensor}, such as {name:name}: the files were read.",
        "index-missing-names": "The index leaves out {tensors:#tensor}, such as {name:name}: the files were read.",
        "replaced": "In several shards, of which transformers loads the last: {tensors:#tensor}, such as {name:name}.",
        # what a pickled file holds
        "nested": "The weights are under {key:name} in a pickled file.",
        "opaque": "Not interpreted: values of classes that were not loaded ({classes:names}).",
        "hidden": "Not read: {storages:#storage} with {bytes:size} inside attributes or values of classes that were not loaded.",
        # how values are decoded
        "misfit-scales": "Scales not applied, as they or other parts are missing or do not fit: of {tensors:#tensor}, such as {name:name}.",
        "decoded": "Decoded from codes and scales: {tensors:#tensor} ({dtypes:list}).",
        "converted": "Converted to fp32 on reading, rounded to nearest even: {tensors:#tensor} ({dtypes:list}).",
        "unscaled": "Described by their codes, because no scales match: {tensors:#tensor} ({dtypes:list}).",
        # adapters
        "adapter": "This is an adapter: results are about its own parameters, not about the model they change.",
        "unmerged-adapter": (
            "{tensors:#tensor} of an adapter that is not merged, such as {name:name}: the model computes with both. Merge it with "
            "merge_and_unload of peft to describe what runs."
        ),
        "merged": "{tensors:#tensor} computed in fp32: {base:name} plus {weight:magnitude} times the {kind} adapter {adapter:name}.",
        "decoded-base": "Changes of the adapter were added to decoded weights of {tensors:#quantized tensor} of the base.",
        "replaced-whole": "The adapter replaces {tensors:#whole tensor}: {names:names}.",
        "not-merged": "Not merged: {modules:#module}, such as {name:name}: {why}.",
        "untied": (
            "The adapter changes {changed:names} and not {kept:names}, which the base ties to that: stored apart here, as the unmerged "
            "model computes; peft's merge may change all."
        ),
        "tied": (
            "The base ties {kept:names} to {changed:names}, which the adapter changes: merged, both change; unmerged, only what the "
            "adapter names."
        ),
        # how tensors were matched
        "moved-layers": "Layers of {base} that have other numbers, by their values: {numbers:list}.",
        "lost-layers": "Layers of {base} without a counterpart in {tuned}: {numbers:list}.",
        "repeated-layers": "Layers of {tuned} that repeat one of {base}, compared again: {numbers:list}.",
        "relaid": "Compared in another layout ({form}): {tensors:#tensor}, such as {name:name} with {other:name}.",
        "relaid-unsure": (
            "Compared in the most usual layout of their shapes ({form}), though values agree in none that was tried: {tensors:#tensor}, "
            "such as {name:name} with {other:name}."
        ),
    }
)
