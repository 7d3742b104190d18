# `make demo` and `make test` need python3 and pip only: the stamp builds .venv and installs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test slow lint bench clean

demo: $(STAMP)
	$(BIN)/fedmc demo

test: $(STAMP) lint
	$(BIN)/python -m pytest -q -m "not slow"
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -q tests/test_kernels.py -m "not slow"

slow: $(STAMP)
	$(BIN)/python -m pytest -q -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/speed.py

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
