"""Matches tensors that are the same parameter under different names: programs add different prefixes and wrappers.

A *bare name* is a name without prefixes and wrappers. A *rule* replaces a prefix of the tuned checkpoint by one of the base:
``language_model.model.layers.0.x`` is ``model.language_model.layers.0.x``, by the rule
``language_model.model`` -> ``model.language_model``.
"""

import re
from collections.abc import Callable, Mapping, Sequence

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

# Distinct prefixes considered on each side, the most frequent first; real checkpoints have up to five.
_PREFIXES = 16


def renamed(base: Sequence[Tensor], tuned: Sequence[Tensor], fit: Callable[[Tensor, Tensor], bool]) -> list[tuple[Tensor, Tensor]]:
    """Pair tensors of ``base`` with their counterparts in ``tuned``, which have no names in common; each tensor at most once.

    One rule applies to all tuned tensors with the same prefix: the one by which most tensors ``fit`` their counterparts. In a tie
    nothing is renamed, nor is a tensor that two rules with equally many votes claim. Tensors that do not fit are paired too if the
    rule applies to them. Takes time linear in the number of tensors.
    """
    ours, theirs = _by_prefix(base), _by_prefix(tuned)
    rules: list[tuple[int, str, str]] = []
    for after, candidates in theirs.items():
        votes = {before: _votes(tensors, candidates, fit) for before, tensors in ours.items()}
        best = max(votes.values())
        if best and sum(count == best for count in votes.values()) == 1:
            rules += [(best, after, before) for before, count in votes.items() if count == best]
    claims: dict[str, tuple[int, Tensor, Tensor | None]] = {}
    for votes_of, after, before in sorted(rules, key=lambda rule: -rule[0]):
        for bare, tensor in theirs[after].items():
            target = ours[before].get(bare)
            if target is not None and tensor is not None:
                count, _, _ = claims.setdefault(target.name, (votes_of, target, tensor))
                if count == votes_of and claims[target.name][2] is not tensor:
                    claims[target.name] = (count, target, None)
    return [(target, tensor) for _, target, tensor in claims.values() if tensor is not None]


def bare_name(name: str) -> tuple[str, str]:
    """Return the bare name and the prefix of a name."""
    for wrapper in _WRAPPERS:
        if wrapper in name:
            name = name.replace(wrapper, "")
    if name.endswith((".gamma", ".beta", ".original0", ".original1")):
        for old, new in _LEAVES:
            name = old.sub(new, name)
    end = _BEFORE.match(name).end()  # type: ignore[union-attr]
    return name[end:], name[:end]


def _by_prefix(tensors: Sequence[Tensor]) -> dict[str, dict[str, Tensor | None]]:
    """Return prefix -> bare name -> tensor; None if two tensors have the same prefix and bare name."""
    found: dict[str, dict[str, Tensor | None]] = {}
    for tensor in tensors:
        bare, before = bare_name(tensor.name)
        alike = found.setdefault(before, {})
        alike[bare] = None if bare in alike else tensor
    frequent = sorted(found, key=lambda before: -len(found[before]))[:_PREFIXES]
    return {before: found[before] for before in frequent}


def _votes(base: Mapping[str, Tensor | None], tuned: Mapping[str, Tensor | None], fit: Callable[[Tensor, Tensor], bool]) -> int:
    """Count the tensors with a fitting counterpart of the same bare name."""
    pairs = ((base.get(bare), tensor) for bare, tensor in tuned.items())
    return sum(ours is not None and theirs is not None and fit(ours, theirs) for ours, theirs in pairs)
