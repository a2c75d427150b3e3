# Every target does its own set-up: it needs Python 3.11 or newer with pip and venv, and nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
DOCS_READY := $(VENV)/.docs-installed

RANGED := tests/model tests/llm tests/probes tests/interventions tests/machines_of_others tests/test_cli.py

.PHONY: report test test-long test-slow test-ranges lint format bench docs package clean

report: $(READY)
	$(BIN)/interp report wma-handwired

# Bytecode is kept whatever the shell says: without it every worker rewrites the asserts of all tests anew, 7 CPU seconds.
test test-long test-slow: export PYTHONDONTWRITEBYTECODE =

test: $(READY)
	$(BIN)/python -m pytest -n auto

test-long: $(READY)
	$(BIN)/python -m pytest -n auto -m "not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -n auto -m ""

# The newest and the lowest releases of every range of pyproject.toml, each in its own environment; torch is the tested one.
# uv chooses them in seconds (pip took an hour) and reads indexes from UV_INDEX and UV_FIND_LINKS, not from pip's settings.
test-ranges: .ranges/highest .ranges/lowest-direct
	.ranges/highest/bin/python -m pytest -n auto $(RANGED)
	.ranges/lowest-direct/bin/python -m pytest -n auto $(RANGED)

.ranges/%: pyproject.toml constraints.txt
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check uv
	grep '^torch==' constraints.txt > $@/torch.txt
	$@/bin/uv pip install --quiet --python $@ --resolution $* -c $@/torch.txt -e ".[cluster,explore,gym,llm,local]"
	$@/bin/uv pip install --quiet --python $@ -c $@/torch.txt pytest pytest-xdist hypothesis jsonschema

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/deptry .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m tests.benchmarks

docs: $(DOCS_READY)
	$(BIN)/python -m docs.build

package: $(READY)
	$(BIN)/python -m tests.package

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	@touch $@

clean:
	rm -rf $(VENV) .ranges output .mypy_cache .ruff_cache .pytest_cache
