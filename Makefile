# Every target creates .venv if needed, and reinstalls only when pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
# One thread per test process, so that two processes do not compete for the cores.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

.PHONY: help quickstart test test-slow rehearse lint format docs bench clean
help:
	@echo "make quickstart  the whole pipeline on this machine, offline, in minutes"
	@echo "make test        the tests"
	@echo "make test-slow   the heavier tests"
	@echo "make rehearse    skytrain launch on this machine, with interruptions; needs root. Some of it: ONLY=\"quota done\""
	@echo "make lint        check formatting, lint, types, imports and names"
	@echo "make format      fix formatting"
	@echo "make docs        the documentation site, in site/; offline, every link checked"
	@echo "make bench       measure the figures of the documentation again; takes hours, some need a GPU"
	@echo "make clean       remove .venv and the tools' caches; your data in skytrain-store stays"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Skytrain needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

quickstart: $(READY)
	$(BIN)/skytrain quickstart

test: $(READY)
	$(TEST_ENV) $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder

test-slow: $(READY)
	$(TEST_ENV) $(PYTEST) -m slow

rehearse: $(READY)
	$(TEST_ENV) $(BIN)/python -m rehearsal $(ONLY)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/check_codebase.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)
	$(BIN)/python scripts/diagrams.py
	$(BIN)/python scripts/site.py

# Skipped without a GPU. A script that fails does not stop the others.
GPU_BENCH := $(wildcard benchmarks/*/h200.py benchmarks/parallel/*_gpu.py) benchmarks/models/memory.py \
	$(filter-out benchmarks/training/cpu_overhead.py benchmarks/training/quickstart_sweep.py,$(wildcard benchmarks/training/*.py))

bench: $(READY)
	@failed=; for script in $$(grep -l __main__ benchmarks/*/*.py); do \
		case " $(GPU_BENCH) " in *" $$script "*) \
			[ -e /dev/nvidia0 ] || { echo "== $$script: skipped, there is no GPU"; continue; };; esac; \
		echo "== $$script"; $(BIN)/python "$$script" || failed="$$failed $$script"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site .cache src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
