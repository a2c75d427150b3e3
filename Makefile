# Every target does its own set-up: it needs Python 3.11 or newer with pip and venv, and nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
DOCS_READY := $(VENV)/.docs-installed

RANGED := tests/model tests/llm tests/probes tests/interventions tests/machines_of_others tests/test_cli.py

.PHONY: report test test-slow test-ranges lint format bench docs package clean

report: $(READY)
	$(BIN)/interp report wma-handwired

test: $(READY)
	$(BIN)/python -m pytest -n auto

test-slow: $(READY)
	$(BIN)/python -m pytest -n auto -m "slow or not slow"

# The newest and the lowest releases of every range of pyproject.toml, each in its own environment; torch is the tested one.
test-ranges: .ranges/newest .ranges/lowest
	.ranges/newest/bin/python -m pytest -n auto $(RANGED)
	.ranges/lowest/bin/python -m pytest -n auto $(RANGED)

.ranges/%: pyproject.toml constraints.txt
	@mkdir -p .ranges
	grep '^torch==' constraints.txt > .ranges/newest.txt
	sed -n '/^dependencies/,/^]/{/"torch>=/d; s/^ *"\([a-z0-9-]*\)>=\([0-9.]*\).*",$$/\1~=\2.0/p}' pyproject.toml | cat .ranges/newest.txt - > .ranges/lowest.txt
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check -c .ranges/$*.txt -e ".[cluster,explore,gym,llm,local]" \
		pytest pytest-xdist hypothesis

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
