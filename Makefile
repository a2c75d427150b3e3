# Every target does its own set-up: it needs Python 3.11 or newer with pip and venv, and nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed

.PHONY: report test test-slow lint format bench clean

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

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) output .mypy_cache .ruff_cache .pytest_cache
