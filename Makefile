# A first call makes .venv and installs everything; later calls are immediate.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint format bench clean test-torch-only test-jax-only

demo: $(STAMP)
	$(BIN)/python examples/digits/run.py

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Each adapter by itself: an environment that has only one framework.
test-torch-only: .venv-torch/.installed
	.venv-torch/bin/python -m pytest tests/unit tests/conformance tests/multiprocess tests/surface

test-jax-only: .venv-jax/.installed
	.venv-jax/bin/python -m pytest tests/unit tests/conformance tests/multiprocess tests/surface

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,jax,trackers,examples,dev]'
	touch $@

.venv-torch/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet --constraint constraints.txt torch
	.venv-torch/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,trackers,dev]'
	touch $@

.venv-jax/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-jax
	.venv-jax/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[jax,trackers,dev]'
	touch $@

clean:
	rm -rf $(VENV) .venv-torch .venv-jax build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis examples/digits/runs benchmarks/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
