# Every target sets up .venv from nothing and installs again only when pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
# Each test process computes on one core: two of them share this machine's cores without fighting over threads.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

.PHONY: help quickstart test test-slow lint format bench clean
help:
	@echo "make quickstart  the whole pipeline on this machine, offline, in minutes"
	@echo "make test        the tests;  make test-slow  the heavier proofs"
	@echo "make lint        format, lint, types, the import contract;  make format  mends the first"
	@echo "make bench       every figure in the documentation, measured again on this machine"
	@echo "make clean       removes .venv and what the tools cached; your data in skytrain-store stays"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Skytrain needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

quickstart: $(READY)
	$(BIN)/skytrain quickstart

test: $(READY)
	$(TEST_ENV) $(PYTEST) -n 2 --dist loadfile

test-slow: $(READY)
	$(TEST_ENV) $(PYTEST) -m slow

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	@for script in benchmarks/*/*.py benchmarks/*.py; do [ -e "$$script" ] || continue; echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
