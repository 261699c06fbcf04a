"""The columns of the toy analyzer's table."""

from analyzers.columns import Column, Table
from analyzers.formatting import count

COLUMNS = [Column("model", "Model", value="checkpoint.ref"), Column("tensors", "Tensors", count)]
COUNT = Table("summary", lambda report: [report], lambda report: COLUMNS)
TABLES = (COUNT,)
