# make advise [ARGS="--model … --gpus …"]   install and answer one request
# make check                                lint and the quick tests of the advisor
# make test                                 everything that decides whether a change is good
# make oracles                              every figure of tests/oracles measured, none looked up
# make docs                                 the documentation as a site, in build/docs
# make pages                                what is computed in the documentation, written anew
# make newest [ONE_IN=6]                     one in six of the advisor's quick tests under the newest Python at hand
# make mutants [SEED=1]                      which changed lines of core logic the tests would notice: an hour
# make lint | make bench | make clean
#
# Needs python3 (3.11 or later) with pip, and nothing else: all of it lives in $(VENV).
# Variables: PYTHON, VENV, ARGS, PYTEST_ARGS, NEWEST_PYTHON, CONSTRAINTS (empty: the newest of every package).

PYTHON ?= python3
VENV ?= .venv
ARGS ?= --model llama3_70b --gpus 32xH100
PYTEST_ARGS ?=
# The versions that the oracle tests were written against.
ORACLE_PACKAGES := torch==2.13.0 megatron-core==0.16.1 numpy
# And the release that answers are for by default, whose layers are measured as well: its wheel is for a later Python
# and runs on this one too (harness/backends/megatron_core/installed.py).
NEWEST_WHEEL := .ci/megatron-core-newest.txt
NEWEST := $(shell sed -n 's/^megatron-core==\([^ ]*\).*/\1/p' $(NEWEST_WHEEL))
NEWEST_CORE := $(VENV)/megatron-core-$(NEWEST)
# Megatron Bridge's adapters, whose wheel is read and not installed: they need a part of it alone.
BRIDGE_WHEEL := .ci/megatron-bridge.txt
BRIDGE := $(VENV)/megatron-bridge-$(shell sed -n 's/^megatron-bridge==\([^ ]*\).*/\1/p' $(BRIDGE_WHEEL))
NEWEST_TESTS := $(addprefix tests/oracles/test_,saved_bytes.py moe_saved_bytes.py activation_peaks.py moe_peaks.py \
  latent_attention.py sparse_attention.py multi_token_prediction.py precision_aware.py grouped_experts.py \
  graph_inputs.py megatron_fsdp.py bridge_adapters.py)

# Tests start many processes: byte code is kept, whatever the shell says of it.
export PYTHONDONTWRITEBYTECODE :=
# Three processes on two cores: many tests wait for processes of their own. A process has whole files: what their tests
# share is made once. In the order of the folders: what takes long stands in their middle, and the last files are short.
SPREAD = -n $(shell $(PYTHON) -c 'import os; print(min(8, 3 * os.cpu_count() // 2))') \
  --dist loadfile --no-loadscope-reorder

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# Every install takes the versions that CI was green with.
CONSTRAINTS ?= .ci/constraints.txt
INSTALL := $(PIP) install --no-compile $(addprefix --constraint ,$(CONSTRAINTS))
# Without torch's own types: what `make lint` would say of them is not said here.
MYPY_ADVISOR := mypy --package advisor --no-warn-unused-ignores --allow-subclassing-any
# The part of the advisor's tests that needs few packages and little time: 90 of 100 tests in a fifth of the time.
QUICK := tests/advisor tests/test_architecture.py tests/test_wording.py -m 'not slow'
.DEFAULT_GOAL := help
.PHONY: help advise check test oracles lint collected newest mutants docs pages bench clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

advise: $(VENV)/.installed
	@$(BIN)/advise $(ARGS)

# Tests with real processes, a real Slurm and a real browser can meet a machine that stalls: what failed (exit code 1)
# is tried once more, and shown. pytest-rerunfailures would cost 40 ms a test: its workers ask for counts by socket.
# mypy has one process: the tests under the second Python run next to it, and what is imported gets its byte code
# once, where each of SPREAD's processes would make all of it at the same time.
test: $(VENV)/.installed-test
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target lint newest collected
	@echo "== pytest"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SPREAD) $(PYTEST_ARGS) || { [ $$? = 1 ] \
	  && echo "== pytest, what failed once more" \
	  && OMP_NUM_THREADS=1 $(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(PYTEST_ARGS); }
	@echo "== pytest, the oracles under megatron-core $(NEWEST)"
	@MEGATRON_CORE=$(abspath $(NEWEST_CORE)) OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(NEWEST_TESTS) \
	  -n logical --maxprocesses 8 --dist loadfile

check: $(VENV)/.installed-check
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "== mypy, the advisor"
	@$(BIN)/$(MYPY_ADVISOR) --cache-dir $(VENV)/mypy
	@echo "== pytest, the advisor"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(QUICK) $(SPREAD) $(PYTEST_ARGS)

NEWEST_PYTHON ?= $(shell bash .ci/newest-python)
# What is computed is the same under every Python: one test in six of each file, and all that are marked every_python,
# in one process: more would take longer to collect than to run.
ONE_IN ?= 6
newest:
ifeq ($(NEWEST_PYTHON),)
	@echo "== no Python after 3.11 is at hand: the advisor's tests do not run under a second one"
else
	@$(MAKE) --no-print-directory PYTHON=$(NEWEST_PYTHON) VENV=$(VENV)/newest $(VENV)/newest/.installed-check
	@echo "== mypy and pytest, the advisor under $$($(NEWEST_PYTHON) --version)"
	@$(VENV)/newest/bin/$(MYPY_ADVISOR) --cache-dir $(VENV)/newest/mypy
	@OMP_NUM_THREADS=1 $(VENV)/newest/bin/python -m pytest $(QUICK) --one-in $(ONE_IN) \
	  -p no:cacheprovider $(if $(filter 1,$(ONE_IN)),$(SPREAD)) $(PYTEST_ARGS)
endif

# After an upgrade of ORACLE_PACKAGES, or for new cases, `ORACLES=record python -m pytest tests/oracles` in one
# process, writes tests/oracles/data/measured.csv anew; with MEGATRON_CORE=.venv/megatron-core-RELEASE before it, and
# $(NEWEST_TESTS) alone, measured-RELEASE.csv.
oracles: $(VENV)/.installed-test
	@echo "== pytest tests/oracles, all of it live"
	@ORACLES=live OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/oracles \
	  -n logical --maxprocesses 8 --dist load $(PYTEST_ARGS)
	@MEGATRON_CORE=$(abspath $(NEWEST_CORE)) ORACLES=live OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(NEWEST_TESTS) \
	  -n logical --maxprocesses 8 --dist load $(PYTEST_ARGS)

collected: $(VENV)/.installed-test
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --collect-only -p no:cacheprovider >/dev/null 2>&1 || true

lint: $(VENV)/.installed-test
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "== mypy"
	@$(BIN)/mypy

# The site describes the packages that its environment has: one elsewhere can have those of another checkout.
docs:
	@case "$(abspath $(VENV))" in "$(CURDIR)"/*) ;; *) \
	  echo "make docs: VENV = $(VENV): must be inside the checkout; leave VENV out for .venv" >&2; exit 2;; esac
	@$(MAKE) --no-print-directory $(VENV)/.installed-docs
	@$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs build/docs
	@echo "== build/docs/index.html"

# What tests compare with the model: tables, drawings, output of commands, notebooks, schemas. Not the photographs of
# the explorer (scripts/photograph_explorer.py).
PAGES_PYTHON ?= $(BIN)/python
pages:
	@$(PAGES_PYTHON) -m scripts.write_schemas
	@$(PAGES_PYTHON) -m scripts.write_architecture
	@$(PAGES_PYTHON) -m scripts.write_docs.options_page
	@$(PAGES_PYTHON) -m scripts.write_docs.megatron_rules_page
	@DOCS=record OMP_NUM_THREADS=1 $(PAGES_PYTHON) -m pytest tests/docs $(PYTEST_ARGS)
	@$(PAGES_PYTHON) scripts/write_notebooks.py

bench: $(VENV)/.installed-test
	@echo "== benchmarks"
	@$(BIN)/python -m pytest tests/benchmarks -o python_files='bench_*.py' $(PYTEST_ARGS)

mutants: $(VENV)/.installed-test
	@$(BIN)/python scripts/mutants.py --seed $(or $(SEED),1)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks

# Debian ships venv without ensurepip: the outer pip then installs the inner one.
$(VENV)/.created:
	@echo "== virtual environment $(VENV)" >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed, PYTHON=$(PYTHON) is older" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 \
	  || { $(PYTHON) -m venv --clear --without-pip $(VENV) \
	       && $(PYTHON) -m pip --quiet --python $(BIN)/python install pip; }
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml
	@echo "== install the advisor" >&2
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.created pyproject.toml
	@echo "== install what builds the documentation" >&2
	@$(INSTALL) --editable '.[docs]'
	@touch $@

# The newest pip takes half the time of Python 3.11's own, which does it too. Byte code is made of what is imported,
# when it is: most of what is installed never is.
$(VENV)/.installed-check: $(VENV)/.created pyproject.toml $(CONSTRAINTS)
	@echo "== install what make check needs: .[check]"
	@$(INSTALL) --editable '.[check]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-test: $(VENV)/.created pyproject.toml Makefile $(CONSTRAINTS) $(NEWEST_WHEEL) $(BRIDGE_WHEEL)
	@echo "== install the tests' packages: .[dev] $(ORACLE_PACKAGES)"
	@$(INSTALL) --upgrade pip || true
	@$(INSTALL) --editable '.[dev]' $(ORACLE_PACKAGES)
	@$(PIP) download --no-deps --only-binary=:all: --python-version 3.12 --dest $(VENV)/wheels \
	  --require-hashes --requirement $(NEWEST_WHEEL)
	@$(BIN)/python -m zipfile -e $(VENV)/wheels/megatron_core-$(NEWEST)-*.whl $(NEWEST_CORE)
	@$(PIP) download --no-deps --only-binary=:all: --python-version 3.12 --dest $(VENV)/wheels \
	  --require-hashes --requirement $(BRIDGE_WHEEL)
	@$(BIN)/python -m zipfile -e $(VENV)/wheels/megatron_bridge-*.whl $(BRIDGE)
	@touch $@ $(VENV)/.installed $(VENV)/.installed-docs $(VENV)/.installed-check
