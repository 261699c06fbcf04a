# make run        start the app on http://127.0.0.1:7860 (PORT=... for another port)
# make test       style, types, tests, browser included (THREADS=... for the threads of each process, 1 by default)
# make test-all   with the exhaustive tests, which take several times as long
# make test-avx2  the same as on a processor without AVX-512
# make test-gpu   the tests that need a CUDA GPU
# make bench      speed and memory, side by side with the naive way
# make docs       renew what is computed in docs
# make lint       style and types only
#
# Each target makes .venv where it is missing, and installs what is new in the requirements. PYTHON=... names another interpreter, and
# PIP="uv pip" another installer: uv takes torch from the index that it is configured to use, and not from pip's.

PYTHON ?= python3
PIP ?= $(python) -m pip --disable-pip-version-check
PORT ?= 7860
THREADS ?= 1

python := .venv/bin/python
pip_install = $(PIP) install --quiet --no-compile
# An environment that has it would compile everything again in each process.
unexport PYTHONDONTWRITEBYTECODE
# The interpreter of .venv may be gone.
$(shell $(python) -c '' 2>/dev/null || rm -rf .venv)
# Two at a time: kernels are compiled while pip installs, and types checked, a minute and a half of one core, while tests run.
MAKEFLAGS += --jobs=2

.PHONY: run test test-all test-avx2 test-gpu bench docs lint style types tests chromium

# exec: the app itself gets the signals, and nothing of it outlives this command.
run: .venv/app .venv/kernels
	@exec env GRADIO_SERVER_PORT=$(PORT) $(python) app.py

test: style types tests

# Three processes for two cores, since the one with the browser waits half of its time; each takes 14 s of a core to import the tests. One
# thread of torch's for each of them: more than cores wait for each other.
tests: .venv/tests .venv/kernels chromium style
	OMP_NUM_THREADS=$(THREADS) $(python) -m pytest -n 3 --no-loadscope-reorder $(chosen)

# The last -m counts: an empty one takes all.
test-all: chosen = -m '' --hypothesis-profile=exhaustive
test-all: test

# What each library reads. numpy is told what to leave out, by the names of its version.
avx2 = ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 NUMBA_CPU_FEATURES= NUMBA_CPU_NAME=haswell ONEDNN_MAX_CPU_ISA=AVX2 \
	OPENBLAS_CORETYPE=Haswell
avx512 = import numpy; print(*(name for name in numpy.show_config("dicts")["SIMD Extensions"]["found"] if name[:6] in ("AVX512", "X86_V4")))
test-avx2: .venv/tests
	$(avx2) NPY_DISABLE_CPU_FEATURES="$$($(python) -c '$(avx512)')" $(MAKE) test

test-gpu: .venv/tests .venv/kernels
	MANTISSA_TEST_GPU=1 $(python) -m pytest tests/gpu tests/numerics/test_torch_kernels.py tests/numerics/test_torch_pairs.py

bench: .venv/tests .venv/kernels
	$(python) -m benchmarks

docs: .venv/tests
	$(python) -m docs.build

lint: style types

style: .venv/tests
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	.venv/bin/lint-imports

types: .venv/tests
	$(python) -m mypy

chromium:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get update && apt-get install -y chromium; } \
		|| { echo 'The browser tests need Chromium: install the package "chromium", then run make test again.' >&2; exit 1; }

# The program mantissa, and what the kernels need.
.venv/core: pyproject.toml
	$(PYTHON) -m venv .venv
	$(pip_install) --editable .
	@touch $@

# The kernels are compiled once, here, and not while the first visitor waits.
.venv/kernels: .venv/core $(wildcard analyzers/numerics/*.py)
	$(python) -W ignore -m analyzers.numerics
	@touch $@

# On all cores, where pip would use one, and before an import: what a compiler warns of would be an error of the tests. Not the packages of
# which few files are ever imported; some carry files that are not for this Python. For the app, not what its page does not import: the
# fork server compiles of that what it needs, while the page answers already.
rare = /(models|tests|testing|_inductor|onnx)/|/site-packages/(dask|distributed|mypyc?|networkx|pip|plotly|pygments|setuptools|sympy)/
later = /site-packages/(accelerate|mpmath|peft|torch|torchao|torchgen|transformers)/
compile = $(python) -W ignore -m compileall -qq -j 0 -x '$(1)' .venv/lib || true

.venv/app: .venv/core requirements.txt
	$(pip_install) -r requirements.txt
	@$(call compile,$(rare)|$(later))
	@touch $@

.venv/tests: .venv/core requirements.txt tests/requirements.txt
	$(pip_install) -r requirements.txt -r tests/requirements.txt
	@$(call compile,$(rare))
	@touch .venv/app $@
