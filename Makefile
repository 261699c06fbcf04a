# make run        start the app on http://127.0.0.1:7860 (PORT=... for another port)
# make test       style, types, tests, browser included (THREADS=... for the threads of each process, 1 by default)
# make test-all   with the exhaustive tests, which take several times as long
# make test-avx2  the same as on a processor without AVX-512
# make test-gpu   the tests that need a CUDA GPU
# make bench      speed and memory, side by side with the naive way
# make docs       renew what is computed in docs
# make lint       style and types only
#
# Each target makes .venv where it is missing and reuses it otherwise. A stamp in .venv carries a checksum of the
# requirements it was made from, so that changed requirements, and nothing else, lead to a new installation.

PYTHON ?= python3
PORT ?= 7860
THREADS ?= 1

python := .venv/bin/python
pip_install := $(python) -m pip install --quiet --disable-pip-version-check --no-compile
# On all cores, where pip would use one; left to the first import, what a compiler warns of would be an error of the tests. Without
# the packages of which few files are ever imported.
compile := $(python) -W ignore -m compileall -qq -j 0 -x '/(models|tests|testing|_inductor|onnx)/|/site-packages/(dask|distributed|mypyc?|networkx|pip|plotly|pygments|setuptools|sympy)/' .venv/lib
kernels := echo 'Compiling once' && $(python) -W ignore -m analyzers.numerics
checksum = $(shell cat $(1) | cksum | cut -d ' ' -f 1)
app_stamp := .venv/app-$(call checksum,requirements.txt)
tests_stamp := .venv/tests-$(call checksum,requirements.txt tests/requirements.txt)
kernels_stamp := .venv/kernels
unfinished := .venv/unfinished

# An environment that has it would compile everything again in each process.
unexport PYTHONDONTWRITEBYTECODE

# Whether .venv can be built upon: its interpreter and pip work, and no installation into it was interrupted.
whole := $(python) -c 'import pip' 2>/dev/null && test ! -e $(unfinished)
ifneq ($(shell $(whole) && echo yes),yes)
$(shell rm -f .venv/app-* .venv/tests-*)
endif

.PHONY: run test test-all test-avx2 test-gpu tested bench docs lint style types kernels chromium

# exec: the app itself gets the signals, and nothing of it outlives this command.
run: $(app_stamp) $(kernels_stamp)
	@exec env GRADIO_SERVER_PORT=$(PORT) $(python) app.py

# Types are checked, a minute and a half of one core, while kernels are compiled and the first tests run.
test: $(tests_stamp) style
	@$(MAKE) --no-print-directory --jobs=2 types tested chosen="$(chosen)"

# Four processes for two cores: with three, a third of the time went into waiting for browsers, servers and programs (tests/conftest.py deals
# the tests out). One thread of torch's for each: more of them than cores wait for each other. Among thousands of tests with servers, browsers
# and deadlines, one may meet a machine that stood still: what fails is run again, twice at most, and the summary lists it as RERUN.
tested: chromium kernels
	OMP_NUM_THREADS=$(THREADS) $(python) -m pytest -n 4 --no-loadscope-reorder --reruns 2 $(chosen)

# The last -m counts: an empty one takes all.
test-all: chosen = -m '' --hypothesis-profile=exhaustive
test-all: test

# What each library reads. numpy is told what to leave out, by the names of its version.
test-avx2: export ATEN_CPU_CAPABILITY = avx2
test-avx2: export MKL_ENABLE_INSTRUCTIONS = AVX2
test-avx2: export NUMBA_CPU_FEATURES =
test-avx2: export NUMBA_CPU_NAME = haswell
test-avx2: export ONEDNN_MAX_CPU_ISA = AVX2
test-avx2: export OPENBLAS_CORETYPE = Haswell
avx512 = import numpy; print(*(name for name in numpy.show_config("dicts")["SIMD Extensions"]["found"] if name[:6] in ("AVX512", "X86_V4")))
test-avx2: $(tests_stamp)
	NPY_DISABLE_CPU_FEATURES="$$($(python) -c '$(avx512)')" $(MAKE) --no-print-directory test

test-gpu: $(tests_stamp) $(kernels_stamp)
	MANTISSA_TEST_GPU=1 $(python) -m pytest tests/gpu tests/numerics/test_torch_kernels.py tests/numerics/test_torch_pairs.py

kernels: $(tests_stamp) $(kernels_stamp)

bench: $(tests_stamp) $(kernels_stamp)
	$(python) -m benchmarks

docs: $(tests_stamp)
	$(python) -m docs.build

lint: style types

style: $(tests_stamp)
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	.venv/bin/lint-imports

types: $(tests_stamp)
	$(python) -m mypy

chromium:
	@command -v chromium >/dev/null && exit; \
	root=; test "$$(id -u)" = 0 || root='sudo -n'; \
	{ command -v apt-get && $$root true; } >/dev/null 2>&1 \
		&& $$root apt-get update && $$root env DEBIAN_FRONTEND=noninteractive apt-get install -y chromium \
		|| { echo 'The browser tests need Chromium: install the package "chromium", then run make test again.' >&2; exit 1; }

# $(call install,files): what these files of requirements name. The kernels are compiled meanwhile, by another core than the one that pip uses.
define install
	@command -v $(PYTHON) >/dev/null \
		|| { echo 'Mantissa needs Python 3.11 or 3.12, and there is no $(PYTHON). Install it, or name yours: make PYTHON=...' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Mantissa needs Python 3.11 or 3.12; $(PYTHON) is $$($(PYTHON) -V 2>&1). Name another: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo 'The venv module of $(PYTHON) is missing: install the package "python3-venv".' >&2; exit 1; }
	@{ $(whole); } || { rm -rf .venv && $(PYTHON) -m venv .venv; }
	@echo 'Installing $(1) into .venv'
	@touch $(unfinished) && rm -f $(kernels_stamp) && $(pip_install) --editable .  # the program mantissa, and what the kernels need
	@{ $(kernels) && touch $(kernels_stamp); } & $(pip_install) $(addprefix -r ,$(1)); installed=$$?; wait; exit $$installed
	@$(compile) || true  # some packages carry files that are not for this Python
	@rm -f .venv/app-* .venv/tests-* $(unfinished)
	@touch $(app_stamp) $@
endef

$(app_stamp):
	$(call install,requirements.txt)

$(tests_stamp):
	$(call install,requirements.txt tests/requirements.txt)

# The kernels are compiled once, at the installation or here, and not while the first visitor waits.
$(kernels_stamp): $(wildcard analyzers/numerics/*.py) | $(app_stamp)
	@$(kernels)
	@touch $@
