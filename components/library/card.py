"""The card of the dataset: what it is, how to load it, and the configurations that the Hub's viewer shows."""

CARD = "README.md"

_CARD = """---
license: cc-by-4.0
pretty_name: Mantissa library
tags:
- mantissa
- numerical-precision
configs:
- config_name: labels
  data_files: labels/*.parquet
  default: true
- config_name: results
  data_files: results/*.parquet
---

# Mantissa library

In which precision language models were trained, and what their weights show about it. Contributed with Mantissa, which reads and
writes this dataset.

* `labels`: what somebody says a model was trained in, with the evidence for it (`evidence_link`, `evidence_quote`). A contributor's
  later label names in `replaces` the one that it replaces. `provenance` is `login` (of the Hub), `local` (no login) or `seed`; `author`
  says that the contributor belongs to the model's organisation. Nobody has checked the evidence: read it, and compare.
* `results`: reports on public checkpoints. `report` holds the whole JSON; the other columns are extracted from it.
* `flags/`: doubts about labels, if there are any.

```python
import pandas as pd

labels = pd.read_parquet("hf://datasets/{name}/labels")
results = pd.read_parquet("hf://datasets/{name}/results", columns=["models", "commits", "storage", "passed_through", "trained_in"])
```

`id` is the SHA-256 of the content of a label, or the id of a report. Texts are untrusted: show them as plain text.
"""


def card(name: str) -> bytes:
    """The card of the dataset repository ``name``."""
    return _CARD.replace("{name}", name).encode()
