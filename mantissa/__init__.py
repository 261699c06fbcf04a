"""Answers questions about how a language model was trained from the numbers in its weights, in Python.

report = mantissa.dtype("org/model")
report.summary, report.tables()["tensors"], report.plot("spectrum")
"""

from analyzers import __version__ as __version__
from mantissa.api import check as check
from mantissa.api import compare as compare
from mantissa.api import conflict as conflict
from mantissa.api import dtype as dtype
from mantissa.api import exit as exit
from mantissa.api import merge as merge
from mantissa.api import parents as parents
from mantissa.api import precision as precision
from mantissa.api import read_report as read_report
from mantissa.api import shrink as shrink
from mantissa.api import sparsity as sparsity
from mantissa.api import stream as stream
