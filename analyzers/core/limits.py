"""Settings, which an environment variable overrides, and the constants that several modules share, with their reasons.

``SETTINGS`` lists the settings in the order below, as docs/methods/index.md and docs/deploy.md do.
"""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """A limit that an operator may change. value: in ``unit``; why: what it bounds."""

    name: str
    value: int
    unit: str
    why: str

    @property
    def variable(self) -> str:
        """The environment variable, read at import, that overrides the value."""
        return f"MANTISSA_{self.name}"


SETTINGS: list[Setting] = []


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _setting(name: str, default: int, unit: str, why: str) -> int:
    text = os.environ.get(f"MANTISSA_{name}", "")
    try:
        value = int(text) if text else default
    except ValueError:
        raise SystemExit(f"MANTISSA_{name} must be a whole number of {unit}, not {text[:40]!r}.") from None
    if value < 1:
        raise SystemExit(f"MANTISSA_{name} must be at least 1 ({unit}), not {value}.")
    SETTINGS.append(Setting(name, value, unit, why))
    return value


JOBS = _setting("JOBS", 4, "jobs", "Analyses that the page runs at once; one visitor gets at most half of them.")
MODEL_JOBS = _setting("MODEL_JOBS", 1, "jobs", "How many of these may run a model: they share one GPU, or the memory.")
QUEUE = _setting("QUEUE", 32, "calls", "A sixteenth of the calls that may wait; four runs of a visitor may.")
JOBS_MEMORY = _setting("JOBS_MEMORY", 600_000_000, "bytes", "Memory of a process that reads weights, without the libraries.")
JOB_SECONDS = _setting("JOB_SECONDS", 900, "seconds", "Longest run of one analysis on the page.")
WEB_EXACT_BYTES = _setting("WEB_EXACT_BYTES", 40_000_000_000, "bytes", "The largest checkpoint that the page reads whole.")
PULL_REQUEST_BYTES = _setting(
    "PULL_REQUEST_BYTES", 10_000_000_000, "bytes", "The largest checkpoint that the page copies for a pull request; two at once."
)
WEB_MODEL_WORK = _setting(
    "WEB_MODEL_WORK", 6_000_000_000_000, "parameters x tokens", "Most that a run on the page may compute; on a GPU 300 times that."
)
GPU_SECONDS = _setting("GPU_SECONDS", 300, "seconds", "ZeroGPU quota requested for a run: the daily quota of a free account.")
LABELS_PER_HOUR = _setting("LABELS_PER_HOUR", 300, "labels", "Added by one login in an hour.")
PUBLISH_SECONDS = _setting("PUBLISH_SECONDS", 60, "seconds", "Time to collect contributions for one commit to the dataset.")
DEFAULT_BUDGET_BYTES = _setting("DEFAULT_BUDGET_BYTES", 64_000_000, "bytes", "How much of the weights quick mode reads by default.")
DATASET_BYTES = _setting("DATASET_BYTES", 100_000_000, "bytes", "Instruction data read at most: lines up to there; row groups whole.")
HUB_PARALLEL_READS = _setting(
    "HUB_PARALLEL_READS", 16, "connections", "Range reads in flight at once, of each of up to three repositories on the Hub."
)
HUB_TIMEOUT_SECONDS = _setting("HUB_TIMEOUT_SECONDS", 20, "seconds", "Longest wait for the Hub to send the next byte.")
HUB_WAIT_SECONDS = _setting("HUB_WAIT_SECONDS", 60, "seconds", "Longest total wait of one read for Retry-After and back-off.")
GRAM_CHUNK_BYTES = _setting("GRAM_CHUNK_BYTES", 128 << 20, "bytes", "Per-sample gradients held at a time; 8 times as much on a GPU.")

REFERENCE_LENGTH = 500  # A longer model reference is neither a Hub id nor a path.
REPOSITORY_FILES = 100_000  # A repository's file list is held in memory.
HEADER_BYTES = 100_000_000  # A safetensors header is parsed in memory; the library has the same limit.
JSON_DEPTH = 100  # Levels of nesting of lists and objects in JSON from outside; real files have under 10 levels.
INDEX_BYTES = 100_000_000  # An index of shards (model.safetensors.index.json) is parsed in memory.
CONFIG_BYTES = 10_000_000  # config.json is parsed in memory.
TOKENIZER_SECONDS = 10  # CPU time for all texts of a run: a tokenizer or chat template may never end.
TOKENIZER_MEMORY = 2 << 30  # Bytes of a tokenizer's process; the largest tokenizers need 0.8 GB.
LOADING_SECONDS = 10  # CPU time for building a model from its configuration, to know which tensors it loads.
LOADING_MEMORY = 1 << 30  # Bytes for building that model, without the libraries; 45,000 tensors need 0.3 GB.
PICKLE_OPCODES = 300_000  # A value takes 1 to 3; each storage admits 60 more, each 8 bytes one, up to 15 times as many.
PICKLE_DEPTH = 1_000  # Levels of nesting of the objects in a pickle; state dicts have under 10 levels.
SHARDS = 5_000  # Each weight file costs one header request and one open file.
TENSORS = 250_000  # Tensor descriptions take up to 800 bytes each; real checkpoints have fewer.
TENSOR_NAME_LENGTH = 4_096  # Names are parsed, filtered and shown; real ones are under 200.
TENSOR_DIMENSIONS = 256  # Shapes are held in memory and shown; real ones have at most 8.
STREAM_BYTES = 64 << 20  # Weights in flight at any moment, over all reads together.
CHUNK_BYTES = 8 << 20  # One chunk of a stream: long enough to amortise its fixed costs.
RANGE_REQUESTS = 1_200  # Range reads of a quick run: two runs stay within the 3,000 that the Hub allows in 5 minutes.
FILTER_LENGTH = 1_000  # Characters of a name filter.
REPORT_TENSORS = 2_000  # Tensor rows of a report; more are aggregated per layer and role.
TRAJECTORY = 64  # Tuned checkpoints compared with one base: all their files are open at once.
CANDIDATES = 8  # Candidates that one model is compared with: every two of them are counted.
SPECTRAL_MATRICES = 48  # Matrices per run whose SVD is computed: up to a minute each on a CPU.
SPECTRAL_SIDE = 4_096  # Shorter side of a matrix for its SVD: time grows with its cube.
SPECTRAL_ELEMENTS = 1 << 26  # Elements of a matrix for its SVD, which holds both checkpoints' matrices in float32.
PAIR_CHARACTERS = 100_000  # Longest instruction, input or answer of a sample.
CONFLICT_SAMPLES = 256  # Gradient conflict holds a matrix of all pairs of samples for each layer.
CONFLICT_TOKENS = 8_192  # Longest sample in gradient conflict; the rest is truncated.
REPORT_COSINES = 500_000  # Cosines between samples in a report; if all layers have more, it has those of the model only.
REPORT_NEURONS = 10  # Rows of the most conflicted neurons in a report, and of the least conflicted ones.
PRECISION_VARIANTS = 24  # Each variant runs the whole model forward and backward.
PRECISION_SEQUENCES = 64  # Precision variants run all sequences as one batch.
PRECISION_TOKENS = 8_192  # Longest sequence of precision variants.
PRECISION_CHARACTERS = 1_000_000  # Longest text given to precision variants.
ENGINE_BYTES = 128 << 20  # A file of an engine's log-probabilities, which is read into memory; 100,000 tokens have 2 to 100 MB.
ENGINE_TOKENS = 200_000  # Tokens of such a file: the report holds them, and the model runs on them eight times.
EXIT_SAMPLES = 256  # Exit feedback holds the hidden states of all its samples in memory.
EXIT_TOKENS = 65_536  # Measured tokens of exit feedback, whose hidden states at all chosen layers are held in memory.
EXIT_SEEDS = 64  # Draws of random codes that exit feedback measures, each on every token.
REQUEST_BYTES = 1_000_000  # Size of one request to the app, which is read into memory.
SCAN_CHECKPOINTS = 100_000  # Longest list of a scan, comments and blank lines included.
EVIDENCE_LINK_LENGTH = 500  # Longest link given as the evidence for a label.
EVIDENCE_QUOTE_LENGTH = 2_000  # Longest quote given as evidence for a label: a paragraph.
RESULT_BYTES = 16_000_000  # JSON of one report that the library accepts; the largest have about 3 MB.
PUBLISH_WAIT_SECONDS = 10  # Longest wait of a contributor of a label for the Hub.
