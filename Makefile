# Every target does its own set-up: it needs Python 3.11 or newer with pip and venv, and nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
DOCS_READY := $(VENV)/.docs-installed

.PHONY: report test test-slow lint format bench docs package clean

report: $(READY)
	$(BIN)/interp report wma-handwired

test: $(READY)
	$(BIN)/python -m pytest -n auto

test-slow: $(READY)
	$(BIN)/python -m pytest -n auto -m "slow or not slow"

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
	rm -rf $(VENV) output .mypy_cache .ruff_cache .pytest_cache
