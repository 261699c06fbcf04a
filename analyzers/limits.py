"""Every limit: its name, value, unit and reason. The environment variable ``MANTISSA_X``, read at import, overrides the limit ``X``.

``LIMITS`` lists them in the order below, as the methods page does.
"""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit. ``value`` is in ``unit``; ``why`` says what it protects."""

    name: str
    value: int
    unit: str
    why: str

    @property
    def variable(self) -> str:
        """The environment variable that overrides this limit."""
        return f"MANTISSA_{self.name}"


LIMITS: list[Limit] = []


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _limit(name: str, default: int, unit: str, why: str) -> int:
    text = os.environ.get(f"MANTISSA_{name}", "")
    try:
        value = int(text) if text else default
    except ValueError:
        raise SystemExit(f"MANTISSA_{name} must be a whole number of {unit}, not {text[:40]!r}.") from None
    if value < 1:
        raise SystemExit(f"MANTISSA_{name} must be at least 1 ({unit}), not {value}.")
    LIMITS.append(Limit(name, value, unit, why))
    return value


REFERENCE_LENGTH = _limit("REFERENCE_LENGTH", 500, "characters", "A longer model reference is neither a Hub id nor a path.")
REPOSITORY_FILES = _limit("REPOSITORY_FILES", 100_000, "files", "A repository's file list is held in memory.")
HEADER_BYTES = _limit("HEADER_BYTES", 100_000_000, "bytes", "A safetensors header is parsed in memory; the library has the same limit.")
METADATA_ENTRIES = _limit("METADATA_ENTRIES", 10_000, "entries", "Metadata of a safetensors header; real ones have under 200.")
METADATA_BYTES = _limit("METADATA_BYTES", 16_000_000, "bytes", "Metadata of a safetensors header; the longest are lists of tags.")
UNICODE_HEADER_BYTES = _limit("UNICODE_HEADER_BYTES", 32_000_000, "bytes", "A header beyond ASCII: decoded, up to four times its bytes.")
GGUF_ENTRIES = _limit("GGUF_ENTRIES", 65_536, "entries", "Entries of a GGUF header are parsed one by one; real ones have under 100.")
GGUF_STRINGS = _limit("GGUF_STRINGS", 4_000_000, "strings", "Strings in lists of a GGUF header; a vocabulary has under 600,000.")
JSON_VALUES = _limit("JSON_VALUES", 2_000_000, "values", "Values of one JSON text from outside: each takes up to 100 bytes in memory.")
JSON_DEPTH = _limit("JSON_DEPTH", 100, "levels", "Nesting of lists and objects in JSON from outside; real files have under 10 levels.")
INDEX_BYTES = _limit("INDEX_BYTES", 100_000_000, "bytes", "An index of shards (model.safetensors.index.json) is parsed in memory.")
COMPONENTS_BYTES = _limit(
    "COMPONENTS_BYTES", 1_000_000, "bytes", "modules.json and model_index.json are parsed in memory; real ones have 2 kB."
)
CONFIG_BYTES = _limit("CONFIG_BYTES", 10_000_000, "bytes", "config.json is parsed in memory.")
TOKENIZER_BYTES = _limit("TOKENIZER_BYTES", 100_000_000, "bytes", "Each tokenizer file is parsed in memory; the largest have 35 MB.")
TOKENIZER_SECONDS = _limit("TOKENIZER_SECONDS", 20, "seconds", "CPU time per text: a tokenizer or chat template may never end.")
TOKENIZER_MEMORY = _limit("TOKENIZER_MEMORY", 2 << 30, "bytes", "Memory of a tokenizer's process; the largest tokenizers need 0.8 GB.")
LOADING_SECONDS = _limit("LOADING_SECONDS", 10, "seconds", "CPU time in which a configuration is built, to say what its model loads.")
LOADING_MEMORY = _limit("LOADING_MEMORY", 1 << 30, "bytes", "Memory that this takes besides libraries; 45,000 tensors need 0.3 GB.")
TOKENS_PER_BYTE = _limit("TOKENS_PER_BYTE", 8, "tokens", "A tokenizer may expand a text; real ones make less than one token per byte.")
TEMPLATE_CHARACTERS = _limit("TEMPLATE_CHARACTERS", 100_000, "characters", "What a chat template may add to a conversation.")
DATASET_BYTES = _limit("DATASET_BYTES", 100_000_000, "bytes", "Instruction data read: JSON lines up to there; a list or row group in all.")
PICKLE_BYTES = _limit(
    "PICKLE_BYTES", 100_000_000, "bytes", "The pickle of a PyTorch file, which describes its tensors, is decoded in memory."
)
PICKLE_OPCODES = _limit(
    "PICKLE_OPCODES", 300_000, "opcodes", "A value takes 1 to 3. Storages admit 60 more each, long pickles up to 5 times as many."
)
PICKLE_DEPTH = _limit("PICKLE_DEPTH", 1_000, "levels", "Nesting of the objects in a pickle; state dicts have under 10 levels.")
PICKLE_VIEWS = _limit("PICKLE_VIEWS", 8, "times the file", "Tensors may share bytes: a small file could stand for years of reading.")
ZIP_ENTRIES = _limit("ZIP_ENTRIES", 1_100_000, "entries", "A PyTorch file is a zip archive with an entry for every storage.")
ZIP_DIRECTORY_BYTES = _limit("ZIP_DIRECTORY_BYTES", 200_000_000, "bytes", "The directory of a zip archive is parsed in memory.")
SHARDS = _limit("SHARDS", 5_000, "files", "Each weight file costs one header request and one open file.")
TENSORS = _limit("TENSORS", 250_000, "tensors", "Tensor descriptions take up to 800 bytes each; real checkpoints have fewer.")
TENSOR_NAME_LENGTH = _limit("TENSOR_NAME_LENGTH", 4_096, "characters", "Names are parsed, filtered and shown; real ones are under 200.")
TENSOR_DIMENSIONS = _limit("TENSOR_DIMENSIONS", 256, "dimensions", "Shapes are held in memory and shown; real ones have at most 8.")
STREAM_BYTES = _limit("STREAM_BYTES", 64 << 20, "bytes", "Weights in flight at any moment, over all reads together.")
CHUNK_BYTES = _limit("CHUNK_BYTES", 8 << 20, "bytes", "One chunk of a stream: long enough to amortise its fixed costs.")
DEFAULT_BUDGET_BYTES = _limit("DEFAULT_BUDGET_BYTES", 64_000_000, "bytes", "What quick mode reads of the weights by default.")
MAX_BUDGET_BYTES = _limit("MAX_BUDGET_BYTES", 4_000_000_000, "bytes", "The largest sample in quick mode; exact mode reads everything.")
WEB_EXACT_BYTES = _limit(
    "WEB_EXACT_BYTES", 40_000_000_000, "bytes", "The largest checkpoint the page reads whole; not for the command line."
)
WEB_MODEL_WORK = _limit(
    "WEB_MODEL_WORK",
    6_000_000_000_000,
    "parameters x tokens",
    "The most that one run of the page computes: minutes on two fast cores, 15 on slow ones. On a GPU 300 times as much.",
)
RANGE_REQUESTS = _limit(
    "RANGE_REQUESTS", 1_200, "requests", "Range reads of a quick run: two runs stay within the 3,000 that the Hub allows in 5 minutes."
)
HUB_PARALLEL_READS = _limit("HUB_PARALLEL_READS", 16, "connections", "Range reads in flight at once against the Hub.")
HUB_TIMEOUT_SECONDS = _limit("HUB_TIMEOUT_SECONDS", 20, "seconds", "Longest wait for the Hub to send the next byte.")
HUB_MIN_BYTES_PER_SECOND = _limit(
    "HUB_MIN_BYTES_PER_SECOND", 2_000, "bytes per second", "A slower reply, measured over 20 seconds, is abandoned."
)
HUB_WAIT_SECONDS = _limit("HUB_WAIT_SECONDS", 60, "seconds", "Longest total wait of one read for Retry-After and back-off.")
HUB_ATTEMPTS = _limit("HUB_ATTEMPTS", 5, "attempts", "Attempts at one read.")
HUB_REPLY_BYTES = _limit("HUB_REPLY_BYTES", 50_000_000, "bytes", "A reply of the Hub's API (a file list) is parsed in memory.")
FILTER_SECONDS = _limit("FILTER_SECONDS", 2, "seconds", "Longest time that name filters may take over all tensor names.")
FILTER_REPEATS = _limit("FILTER_REPEATS", 10_000, "repeats", "Counted repeats of a name filter, multiplied: compiling unrolls them.")
FILTER_LENGTH = _limit("FILTER_LENGTH", 1_000, "characters", "Longest name filter.")
REPORT_TENSORS = _limit("REPORT_TENSORS", 2_000, "rows", "Beyond this a report's tensor rows are aggregated per layer and role.")
FOSSIL_ROWS = _limit("FOSSIL_ROWS", 4_000_000, "rows", "Row counters are kept for matrices with at most this many rows, 16 bytes each.")
TRAJECTORY = _limit("TRAJECTORY", 64, "checkpoints", "Tuned checkpoints compared with one base: all their files are open at once.")
CANDIDATES = _limit("CANDIDATES", 64, "checkpoints", "Candidates that one model is compared with: all their files are open at once.")
SUGGESTED = _limit("SUGGESTED", 6, "checkpoints", "Models of the library that are compared where no candidate is named: each is read.")
FAMILY = _limit("FAMILY", 200, "results", "Results of parents that the page of a family shows, the newest: their reports are read for it.")
SPECTRAL_MATRICES = _limit("SPECTRAL_MATRICES", 48, "matrices", "Matrices per run whose SVD is computed: up to a minute each on a CPU.")
SPECTRAL_SIDE = _limit("SPECTRAL_SIDE", 4_096, "rows", "Shorter side of a matrix for its SVD: time grows with its cube.")
SPECTRAL_ELEMENTS = _limit("SPECTRAL_ELEMENTS", 1 << 26, "elements", "A matrix is held in memory in float32 for its SVD, from both sides.")
PAIR_CHARACTERS = _limit("PAIR_CHARACTERS", 100_000, "characters", "Longest instruction, input or answer of a sample.")
MODEL_LAYERS = _limit("MODEL_LAYERS", 2_048, "layers", "Layers are inspected one by one before a run; the deepest models have about 200.")
MODEL_EXPERTS = _limit("MODEL_EXPERTS", 100_000, "experts", "Experts of all layers together; the largest models have about 25,000.")
CONFLICT_SAMPLES = _limit("CONFLICT_SAMPLES", 256, "samples", "Gradient conflict keeps a matrix of all pairs of samples for each layer.")
CONFLICT_TOKENS = _limit("CONFLICT_TOKENS", 8_192, "tokens", "Longest sample in gradient conflict; the rest is truncated.")
GRAM_CHUNK_BYTES = _limit(
    "GRAM_CHUNK_BYTES", 128 << 20, "bytes", "Per-sample gradients held at a time, small enough for the cache; on a GPU 8 times as much."
)
REPORT_COSINES = _limit("REPORT_COSINES", 500_000, "numbers", "Beyond this a report has the cosines between samples for the model only.")
REPORT_NEURONS = _limit("REPORT_NEURONS", 200, "rows", "Rows of the most, and as many of the least conflicted neurons, in a report.")
NEURON_COSINES = _limit(
    "NEURON_COSINES", 200_000, "numbers", "Cosines between samples of the most and least conflicted neurons in a report."
)
PRECISION_VARIANTS = _limit("PRECISION_VARIANTS", 24, "variants", "Each runs the whole model forward and backward.")
PRECISION_SEQUENCES = _limit("PRECISION_SEQUENCES", 64, "sequences", "Precision variants run all sequences as one batch.")
PRECISION_TOKENS = _limit("PRECISION_TOKENS", 8_192, "tokens", "Longest sequence of precision variants.")
PRECISION_CHARACTERS = _limit("PRECISION_CHARACTERS", 1_000_000, "characters", "Longest text given to precision variants.")
PRECISION_KEPT_BYTES = _limit(
    "PRECISION_KEPT_BYTES",
    128 << 20,
    "bytes",
    "Activations that a precision run keeps for the backward pass, more on a GPU that has room; others are recomputed.",
)
EXIT_SAMPLES = _limit("EXIT_SAMPLES", 256, "samples", "Exit feedback keeps the hidden states of all its samples.")
EXIT_LENGTH = _limit("EXIT_LENGTH", 8_192, "tokens", "Longest sample in exit feedback; the rest is truncated.")
EXIT_TOKENS = _limit("EXIT_TOKENS", 65_536, "tokens", "Measured tokens of exit feedback: their hidden states at every layer are kept.")
EXIT_SIZE = _limit("EXIT_SIZE", 65_536, "columns or rows", "Largest rank or k of a signal of exit feedback.")
EXIT_SEEDS = _limit("EXIT_SEEDS", 64, "seeds", "Draws of random codes that exit feedback measures, each on every token.")
EXIT_LOGITS_BYTES = _limit("EXIT_LOGITS_BYTES", 64 << 20, "bytes", "Logits of exit feedback at a time; about six times as much is added.")
EXIT_CODES_BYTES = _limit("EXIT_CODES_BYTES", 512 << 20, "bytes", "Memory of the heads that exit feedback measures at a time.")
LABELS_BYTES = _limit("LABELS_BYTES", 10_000_000, "bytes", "A file of labels that the classifier is fitted on is parsed in memory.")
JOBS = _limit("JOBS", 4, "jobs", "Analyses the page runs at once; half of them at most for one visitor.")
MODEL_JOBS = _limit("MODEL_JOBS", 1, "jobs", "Of these, how many may run a model: they share one GPU, or the machine's memory.")
JOBS_MEMORY = _limit("JOBS_MEMORY", 600_000_000, "bytes", "Memory of all processes that read weights for the page, without the libraries.")
QUEUE = _limit("QUEUE", 32, "calls", "Analyses that may wait, with and without a model counted separately; a quarter for one visitor.")
READER_SECONDS = _limit("READER_SECONDS", 10, "seconds", "An analysis on the page ends when nobody has read its progress for so long.")
BODY_SECONDS = _limit("BODY_SECONDS", 15, "seconds", "A request's body must arrive within this time, plus a second for each 100 kB.")
REQUEST_BYTES = _limit("REQUEST_BYTES", 8_000_000, "bytes", "Size of one request to the app, which is read into memory.")
REQUEST_VALUES = _limit("REQUEST_VALUES", 100_000, "values", "Lists, objects, texts and commas in a request, which are held in memory.")
LONG_REQUESTS = _limit("LONG_REQUESTS", 8, "requests", "Of more than 64 kB, that are read at once; a quarter of them from one address.")
CONNECTIONS = _limit("CONNECTIONS", 1_000, "connections", "Each is an open file; and at most half of the files that the app may open.")
CLIENT_SECONDS = _limit(
    "CLIENT_SECONDS", 20, "seconds", "A connection ends that asks for nothing, or of whose answer nobody reads 64 kB, for so long."
)
REQUESTS_PER_ADDRESS = _limit(
    "REQUESTS_PER_ADDRESS", 400, "requests", "Answered at once to one address; an open page is one, and all visitors behind a proxy may be."
)
SESSIONS = _limit("SESSIONS", 300, "visitors", "Gradio keeps about 0.2 MB for each visitor or API caller until others come.")
GPU_SECONDS = _limit("GPU_SECONDS", 300, "seconds", "Of its quota that one run asks of ZeroGPU: what a free account has for a day.")
JOB_SECONDS = _limit("JOB_SECONDS", 900, "seconds", "Longest run of one analysis started from the page.")
MODELS = _limit("MODELS", 20, "models", "Models in one run of the page, read one after the other.")
RESULTS_MEMORY = _limit("RESULTS_MEMORY", 100_000_000, "bytes", "Reports on open pages are held for downloads; the oldest go first.")
SEARCHES = _limit("SEARCHES", 4, "searches", "Hub searches of the picker at once; further key strokes do not search.")
SCAN_CHECKPOINTS = _limit("SCAN_CHECKPOINTS", 100_000, "lines", "Longest list of a scan, comments and blank lines included.")
SCAN_LIST_BYTES = _limit("SCAN_LIST_BYTES", 20_000_000, "bytes", "The list of a scan is held in memory.")
SCAN_JOBS = _limit("SCAN_JOBS", 64, "checkpoints", "Checkpoints that one process of a scan reads at once.")
SCAN_PART_BYTES = _limit("SCAN_PART_BYTES", 1 << 30, "bytes", "On a cluster, exact mode counts larger checkpoints in parts of this size.")
EVIDENCE_LINK_LENGTH = _limit("EVIDENCE_LINK_LENGTH", 500, "characters", "Longest link given as the evidence for a label.")
EVIDENCE_QUOTE_LENGTH = _limit("EVIDENCE_QUOTE_LENGTH", 2_000, "characters", "Longest quote given as evidence for a label: a paragraph.")
LABELS_PER_HOUR = _limit(
    "LABELS_PER_HOUR", 300, "labels and flags", "The most that one contributor adds in an hour; all those without a login count as one."
)
LABELS_PER_ADDRESS = _limit("LABELS_PER_ADDRESS", 60, "labels and flags", "Of these, the most from one address without a login.")
FLAGS = _limit("FLAGS", 3, "contributors", "Flags by this many logged-in contributors hide a label, unless a moderator decides otherwise.")
AVAILABLE_SECONDS = _limit(
    "AVAILABLE_SECONDS", 900, "seconds", "Whether a stored result's repository is still public is asked once in this time."
)
LIBRARY_RESULTS = _limit("LIBRARY_RESULTS", 100_000, "results", "Results stored here; the oldest are deleted first, labels never.")
LIBRARY_BYTES = _limit("LIBRARY_BYTES", 10_000_000_000, "bytes", "Disk space of the results stored here, compressed.")
RESULT_BYTES = _limit("RESULT_BYTES", 16_000_000, "bytes", "JSON of one report that the library accepts; the largest have about 3 MB.")
LIBRARY_FILE_BYTES = _limit("LIBRARY_FILE_BYTES", 256_000_000, "bytes", "Larger files of the library's dataset are ignored.")
LIBRARY_FILE_ROWS = _limit("LIBRARY_FILE_ROWS", 1_000_000, "rows", "Rows read from one file of the library's dataset.")
LIBRARY_SHARD_BYTES = _limit("LIBRARY_SHARD_BYTES", 16_000_000, "bytes", "Files of the dataset are merged, in memory, up to this size.")
LIBRARY_FILES = _limit("LIBRARY_FILES", 24, "files", "Small files of one kind in the dataset, beyond which they are merged.")
LIBRARY_BATCH = _limit("LIBRARY_BATCH", 2_000, "rows", "Rows that one commit to the library's dataset adds.")
LIBRARY_BATCH_BYTES = _limit("LIBRARY_BATCH_BYTES", 24_000_000, "bytes", "JSON of reports that one commit to the library's dataset adds.")
PUBLISH_SECONDS = _limit("PUBLISH_SECONDS", 60, "seconds", "Time to collect contributions for one commit, and between two updates.")
PUBLISH_WAIT_SECONDS = _limit(
    "PUBLISH_WAIT_SECONDS", 10, "seconds", "Longest wait of a contributor for the Hub, where the disk does not survive a restart."
)
COMMITS_PER_HOUR = _limit("COMMITS_PER_HOUR", 100, "commits", "Commits to the dataset in an hour: the Hub allows about 128 per repository.")
LIBRARY_ATTEMPTS = _limit("LIBRARY_ATTEMPTS", 20, "attempts", "Attempts at one commit to the dataset before it waits for the next turn.")
LIBRARY_WAIT_SECONDS = _limit("LIBRARY_WAIT_SECONDS", 600, "seconds", "Longest single wait of the publisher for Retry-After and back-off.")
LIBRARY_BACKUPS = _limit("LIBRARY_BACKUPS", 3, "files", "Daily backups of the library kept in its folder, the newest.")
REFIT_SECONDS = _limit("REFIT_SECONDS", 300, "seconds", "Shortest time between two fits of the classifier: each takes ten seconds.")
FIT_SECONDS = _limit("FIT_SECONDS", 600, "seconds", "Longest fit of the classifier, in a process of its own.")
LIBRARY_BUSY_SECONDS = _limit("LIBRARY_BUSY_SECONDS", 30, "seconds", "Longest wait for another process that writes to the same library.")
