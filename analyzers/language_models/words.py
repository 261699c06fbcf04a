"""What running a model remarks, a template per code."""

from analyzers.core.words import Words

WORDS = Words(
    {
        "few-samples": "{source:name} has {samples:#sample}, fewer than the {requested:count} requested.",
        "limited-rows": "Samples were chosen from {rows:#row}, not from all of the data: only its beginning is read, "
        "MANTISSA_DATASET_BYTES and 1,000,000 lines of a file at most.",
        "truncated": "Samples truncated to {longest:#token}: {truncated:count} of {samples:count}.",
        "offloaded": "Layers were read from the weight files one at a time: the weights need {bytes:size}, more than was free.",
        "unused": "Stored and not used, because config.json describes a model without them: {tensors:#tensor}.",
        "decoded": "The stored weights are quantized; the model ran with the decoded values.",
    }
)
