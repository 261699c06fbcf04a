"""Files of the dataset that are small and hold much: a text of a dictionary stands in as many places as a stranger likes."""

from io import BytesIO
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from analyzers.core.errors import LimitExceeded
from analyzers.language_models.data_rows import read_rows
from components.library.dataset_rows import take, to_parquet
from tests.cases import few
from tests.library import Bytes
from tests.library.test_publishing import _label

MB = 1_000_000


def _repeated(count: int, size: int = MB) -> Any:
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * count, pyarrow.int32()), pyarrow.array(["x" * size]))


def _in_lists(values: Any, rows: int = 1) -> Any:
    ends = [len(values) // rows * row for row in range(rows + 1)]
    return pyarrow.ListArray.from_arrays(pyarrow.array(ends, pyarrow.int32()), values)


def _file(column: Any) -> Bytes:
    packed = BytesIO()
    parquet.write_table(pyarrow.table({"models": column}), packed, compression="zstd")
    assert packed.tell() < MB
    return Bytes("results/results.parquet", packed.getvalue())


@pytest.mark.parametrize(
    "column",
    few(
        [
            _in_lists(_repeated(2_000)),
            _in_lists(pyarrow.StructArray.from_arrays([_repeated(2_000)], ["name"])),
            pyarrow.MapArray.from_arrays([0, 2_000], pyarrow.array([f"{number}" for number in range(2_000)]), _repeated(2_000)),
            _in_lists(pyarrow.array(np.zeros(20_000_000, np.int8))),
        ],
        {0, 2},
        ["texts", "objects", "maps", "numbers"],
    ),
)
def test_a_row_that_would_not_fit_is_refused_before_it_is_written_out(column: Any) -> None:
    before = pyarrow.total_allocated_bytes()
    with pytest.raises(LimitExceeded, match="MANTISSA_DATASET_BYTES"):
        next(read_rows(_file(column), {"models"}))
    (part,) = take("results", _file(column))
    assert (part.refused, part.reason) == (1, "LimitExceeded")
    assert pyarrow.total_allocated_bytes() - before < 100 * MB


@pytest.mark.parametrize("column", few([_in_lists(_repeated(200), 100), _repeated(100, 2 * MB)], {0}, ["lists", "texts"]))
def test_rows_that_fit_one_by_one_come_one_by_one(column: Any) -> None:
    rows = [len("".join(row["models"])) for _, row in read_rows(_file(column), {"models"})]
    assert rows == [2 * MB] * 100


def test_lists_and_texts_come_as_they_were_written() -> None:
    written = [["a", "b"], [], None, ["\u00e9" * 300, "a"]]
    found = [row["models"] for _, row in read_rows(_file(pyarrow.array(written)), {"models"})]
    assert found == written
    (part,) = take("labels", Bytes("labels/labels.parquet", to_parquet("labels", [_label()])))
    assert [label.model_dump() for label in part.items] == [_label()] and not part.refused
