# The two commands a newcomer needs: `make demo` and `make test`. `make help` lists the rest.
#   make PYTHON=python3.12 ...   the interpreter for .venv (3.11 or newer)
#   make ARGS="-k yarn" test     anything more for pytest
#   make WORKERS=4 test          processes that run tests; each may hold an engine (about 3 GB)

SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install install-latest constraints demo demo-train test test-rest test-all test-slow check lint types format oracles smoke-128k gpu-check bench bench-ruler clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

install: $(STAMP) ## make .venv with everything, in the versions of constraints.txt; does nothing when it is up to date

# Nothing is reinstalled unless what is asked for has changed.
$(STAMP): pyproject.toml setup.py constraints.txt scripts/install.sh
	@PYTHON="$(PYTHON)" bash scripts/install.sh $(VENV)
	@touch $@

install-latest: ## the same with the newest versions that pyproject.toml allows
	@PYTHON="$(PYTHON)" LATEST=1 bash scripts/install.sh $(VENV)
	@touch $(STAMP)

constraints: ## write constraints.txt from .venv; only after `make check` has passed there
	@$(BIN)/python scripts/constraints.py
	@touch $(STAMP)

demo: $(STAMP) ## three small trained models over RULER at 256 to 8192 tokens: table, figure, HTML page, in about three minutes
	@$(BIN)/gatedeval demo

demo-train: $(STAMP) ## make the demo's models again, from nothing (half an hour on two cores; goes on where it was stopped)
	@$(BIN)/python -m tasks.demo train
	@$(BIN)/python -m tasks.demo ship

# A file's tests stay in one process, so that they share its fixtures; tests/conftest.py puts the longest files first.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# A test that hangs must not use up the time of the others: its stack is printed, and it fails.
test: $(STAMP) ## the tests of every day, vLLM's included, in about five minutes on two cores
	@$(PYTEST) --timeout 240 -m "not slow and not extended" $(ARGS)

test-rest: $(STAMP) ## what `make test` leaves out, but the slow ones: killed runs, plain vLLM, two ranks, compiled models, simulations
	@$(PYTEST) --timeout 420 -m "extended and not slow" $(ARGS)

test-all: $(STAMP) ## all tests but the slow ones
	@$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(STAMP) ## the checks of many minutes (real models)
	@$(BIN)/python -m pytest -m slow $(ARGS)

check: lint types test ## lint + types + tests

lint: $(STAMP) ## ruff, and the layers of packages (import-linter)
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-logo

types: $(STAMP) ## mypy
	@$(BIN)/mypy

format: $(STAMP) ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

oracles: $(STAMP) ## only the comparisons with reference numbers
	@$(BIN)/python -m pytest tests/engine/test_oracles.py tests/unit/ruler tests/unit/test_rope.py $(ARGS)

smoke-128k: $(STAMP) ## 4K to 128K on CPU with a tiny model (about five minutes on two cores)
	@$(BIN)/gatedeval make-tiny .cache/tiny
	@$(BIN)/gatedeval run configs/smoke-128k.yaml

gpu-check: $(STAMP) ## does gatedeval work on this GPU: one table of yes and no, in about five minutes (ARGS="--json FILE")
	@$(BIN)/python scripts/gpu_check.py $(ARGS)

bench: $(STAMP) ## every benchmark, appended to docs/benchmarks.md (about 20 minutes on two cores; ARGS="--only gate,sweep")
	@$(BIN)/python bench/all.py $(ARGS)

bench-ruler: $(STAMP) ## speed of RULER's generator, against the peers that are installed
	@$(BIN)/python bench/ruler.py $(ARGS)

clean: ## remove the environment and what was built; results stay
	rm -rf $(VENV) .cache build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
