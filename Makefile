# `make demo` and `make test` need python3 and pip only: the stamp builds .venv and installs.
# Every target runs on a clean checkout. What each holds, and how long it takes: docs/testing.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Compiled kernels, for all processes of all targets.
export NUMBA_CACHE_DIR ?= $(CURDIR)/.numba_cache

WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -q
# Modules stay together, and modules of real processes never run side by side (tests/conftest.py).
PARALLEL := -n $(WORKERS) --dist loadscope --no-loadscope-reorder

.PHONY: demo test fast slow nightly lint docs screenshots bench lock sbom clean

demo: $(STAMP)
	$(BIN)/fedmc demo

test: lint fast

fast: $(STAMP)
	$(PYTEST) $(PARALLEL) -m "not slow and not nightly"
	NUMBA_DISABLE_JIT=1 $(PYTEST) tests/test_kernels.py -m "not slow and not nightly"

slow: $(STAMP)
	$(PYTEST) $(PARALLEL) -m "slow and not nightly"

nightly: $(STAMP)
	$(PYTEST) $(PARALLEL) -m nightly
	FEDMC_EXAMPLES=20 $(PYTEST) $(PARALLEL) -m hypothesis --timeout 1800

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@set -e; for script in $(sort $(wildcard scripts/lint/*.py)); do echo "python $$script"; $(BIN)/python $$script; done

# The site in docs/_build/html; a warning is an error. It fetches nothing, and neither does a reader's browser.
docs: $(STAMP)
	$(BIN)/python -m sphinx -a -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# The pictures in docs/images; needs chromium.
screenshots: $(STAMP)
	$(BIN)/python scripts/screenshots.py

bench: $(STAMP)
	$(BIN)/python benchmarks/speed.py

# The packages of a node's image with their hashes, and a list of them as CycloneDX. Both need the package index.
LOCKED := fedmc/federation/setup/handover/requirements.txt
lock: $(STAMP)
	$(BIN)/uv pip compile pyproject.toml --extra flower --extra dp --extra postgres --universal --python-version 3.11 \
	  --generate-hashes --no-config --quiet --upgrade --custom-compile-command "make lock" -o $(LOCKED)

sbom: $(STAMP)
	$(BIN)/uvx --no-config --from cyclonedx-bom==7.5.0 cyclonedx-py requirements $(LOCKED) --pyproject pyproject.toml \
	  --output-reproducible --of JSON -o sbom.json

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) .numba_cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache docs/_build
