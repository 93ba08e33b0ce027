# Two commands for a fresh machine with Python 3.11+, make and git:
#   make study   set-up and a complete small study on embedded data
#   make test    set-up, lint, types and tests
# `make test-fast` runs the tests that need no Ray, server, browser or cluster; `make faults` those
# that kill processes, hosts and disks.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Only the modules that are imported are worth compiling (--no-compile); Python does it then, once,
# if it may keep what it compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: study test test-fast pytest faults lint schema bench gpu chaos clean

study: $(INSTALLED)
	@if [ -f studies/quickstart/plan.json ]; then \
		$(BIN)/study resume quickstart; \
	else \
		$(BIN)/study run study/config/quickstart.yaml; \
	fi

# Lint and types beside the tests: they take one core, and their lines come when they are done.
test: $(INSTALLED_DEV)
	@$(MAKE) --no-print-directory -j2 lint pytest

pytest: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -m "not faults" -n 3

# The inner loop: no Ray, server, browser, cluster or statistics of many repeats.
test-fast: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -m "not faults and not ray and not server and not browser and not cluster and not postgres and not slow" -n 2

faults: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -m faults -n 3

lint: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

# The JSON schemas of report.json, after a table of the report has changed.
schema: $(INSTALLED)
	$(BIN)/python -m study.report.schema

chaos: $(INSTALLED_DEV)
	DML_STUDY_CHAOS=long $(BIN)/python -m pytest tests/faults/test_chaos.py -s -n 0

bench: $(INSTALLED_DEV)
	$(BIN)/python -m tests.benchmarks

# Exactness on the GPUs of this machine, then throughput and memory beside a plain PyTorch loop.
gpu: $(INSTALLED_DEV)
	$(BIN)/python -m pytest tests/gpu -m gpu -n 0
	$(BIN)/python -m tests.gpu

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e .
	@touch $@

$(INSTALLED_DEV): $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e '.[dev]'
	@touch $@ $(INSTALLED)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
