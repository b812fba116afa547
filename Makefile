# Each target sets up what it needs in .venv and stamps it, so that a second call starts at once.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint bench bench-shrink clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/'

.venv/.base:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

.venv/.ready: .venv/.base pyproject.toml requirements-dev.txt
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps -e .
	touch $@

# The live page is tested in a real browser.
.venv/.chromium: .venv/.base
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
	  S=$$([ "$$(id -u)" = 0 ] || echo sudo); $$S apt-get update -qq && \
	  $$S apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null; }
	touch $@

.venv/.bench: .venv/.ready requirements-bench.txt
	$(BIN)/python -m pip install --quiet -r requirements-bench.txt -c requirements-dev.txt
	touch $@

setup: .venv/.ready  ## make the virtual environment

demo: .venv/.ready  ## a dataset larger than memory: the naive job dies, penstock trains
	$(BIN)/python -m penstock demo

test: .venv/.ready .venv/.chromium  ## all tests
	$(BIN)/python -m pytest -q -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder tests/contract tests/fuzz tests/unit
	$(BIN)/python -m pytest -q -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder tests/integration

test-slow: .venv/.ready .venv/.chromium  ## the tests that take minutes
	$(BIN)/python -m pytest -q -m slow

lint: .venv/.ready  ## style and types
	$(BIN)/ruff check penstock tests benchmarks examples
	$(BIN)/ruff format --check penstock tests benchmarks examples
	$(BIN)/mypy

bench: .venv/.bench  ## speed and memory against peers, results under benchmarks/results
	$(BIN)/python -m benchmarks.run

bench-shrink: .venv/.ready  ## smaller models on Fashion-MNIST (installs Debian's dataset-fashion-mnist)
	KERAS_BACKEND=tensorflow $(BIN)/python -m benchmarks.shrink_fashion

clean:  ## remove what make made
	rm -rf .venv .demo .bench build *.egg-info
