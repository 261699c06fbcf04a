"""Asks the product, and returns its JSON: the only module of this folder that knows where the product is."""

import json
from pathlib import Path
from typing import Any

import mantissa

Json = dict[str, Any]


def sparsity(base: Path, *tuned: Path, **options: Any) -> Json:
    """Return the JSON of ``mantissa sparsity BASE TUNED ...``."""
    return _plain(mantissa.sparsity(base, *tuned, **options))


def parents(model: Path, *candidates: Path, **options: Any) -> Json:
    """Return the JSON of ``mantissa parents MODEL CANDIDATE ...``."""
    return _plain(mantissa.parents(model, *candidates, **options))


def compare(*models: Path, **options: Any) -> Json:
    """Return the JSON of ``mantissa compare MODEL MODEL ...``."""
    return _plain(mantissa.compare(*models, **options))


def _plain(report: Any) -> Json:
    report_json: Json = json.loads(report.model_dump_json())
    return report_json
