"""Matches tensors that are the same parameter under different names: programs add different prefixes and wrappers.

A *bare name* is a name without prefixes and wrappers: ``language_model.model.layers.0.x`` and ``model.language_model.layers.0.x`` are both
``layers.0.x``.
"""

import re
from collections.abc import Callable, Sequence

from analyzers.checkpoints.tensor import Tensor

# Prefixes added by frameworks, by models that contain others, and by transformers for the body of a model under its head.
_LEADING = frozenset(
    {
        "model", "language_model", "text_model", "transformer", "base_model", "pretrained_model", "module", "backbone", "llm", "thinker",
        "actor", "policy", "gpt_neox", "rwkv", "bert", "roberta", "electra", "deberta", "distilbert", "albert", "mpnet", "mobilebert",
        "esm", "fnet", "funnel", "ernie", "luke", "layoutlm", "longformer", "convbert", "biogpt", "vit", "deit", "beit", "dinov2", "swin",
        "wav2vec2", "hubert",
    }
)  # fmt: skip
_BEFORE = re.compile(rf"(.*/)?(({'|'.join(sorted(_LEADING))})\.)*")
# Modules with which frameworks wrap others, anywhere in a name. Of a module that peft trains whole, the trained copy is the one in use.
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "base_layer.", "modules_to_save.default.")
# Names of norm parameters in the first BERT checkpoints, and of torch's weight norm; the older spelling is the bare one.
_LEAVES = (
    (re.compile(r"(norm)\.gamma$", re.IGNORECASE), r"\1.weight"),
    (re.compile(r"(norm)\.beta$", re.IGNORECASE), r"\1.bias"),
    (re.compile(r"\.parametrizations\.weight\.original0$"), ".weight_g"),
    (re.compile(r"\.parametrizations\.weight\.original1$"), ".weight_v"),
)


_ALIKE = 16  # most tensors of one bare name that are tried with each other


def renamed(base: Sequence[Tensor], tuned: Sequence[Tensor], fit: Callable[[Tensor, Tensor], bool]) -> list[tuple[Tensor, Tensor]]:
    """Pair tensors of ``base`` with their counterparts in ``tuned``, which have no names in common, by bare name; each at most once.

    Where several tensors of a side have the same bare name, those are paired that ``fit`` one of the other side and no more.
    """
    ours, theirs = _by_bare_name(base), _by_bare_name(tuned)
    pairs = []
    for bare, mine in ours.items():
        candidates = [(one, other) for one in mine[:_ALIKE] for other in theirs.get(bare, [])[:_ALIKE]]
        fitting = candidates if len(candidates) == 1 else [pair for pair in candidates if fit(*pair)]
        pairs += fitting if len(fitting) == 1 else []
    return pairs


def bare_name(name: str) -> tuple[str, str]:
    """Return the bare name and the prefix of a name."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    if name.endswith((".gamma", ".beta", ".original0", ".original1")):
        for old, new in _LEAVES:
            name = old.sub(new, name)
    end = _BEFORE.match(name).end()  # type: ignore[union-attr]
    return name[end:], name[:end]


def _by_bare_name(tensors: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    found: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(bare_name(tensor.name)[0], []).append(tensor)
    return found
