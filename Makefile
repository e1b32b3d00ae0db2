# Everything a fresh machine needs: Python 3.10 or later and make. A C++ compiler makes the step faster, none is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Tests run in as many processes as there are cores, up to four.
WORKERS := -n auto --maxprocesses 4

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint bench fuzz sanitize docs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.done ## make the virtual environment and build the package in it

# Torch first and alone: a range would fetch the newest build with all that a GPU needs. No build isolation, for the same reason.
$(VENV)/.done: constraints.txt pyproject.toml setup.py $(wildcard src/hyperadam/kernels/native/*.h src/hyperadam/kernels/native/*.cpp)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'setting up: torch first, the largest part; it may take some minutes'
	$(PIP) torch==2.13.0
	@echo 'setting up: the tools, then the package itself'
	$(PIP) setuptools wheel
	$(PIP) --no-build-isolation --editable '.[dev]'
	@$(BIN)/python -c "import hyperadam; print('backends:', ', '.join(hyperadam.kernels.available()))"
	@touch $@

demo: setup ## compare ours with Adam and SGD on MNIST: a table, pages, and the result in words
	$(BIN)/hyperadam demo

lint: setup ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint ## lint, types and tests
	$(BIN)/python -m pytest $(WORKERS)

test-all: lint ## lint, types and everything, slow tests too
	$(BIN)/python -m pytest $(WORKERS) -m ''

bench: setup ## measure the step, the meta-gradient and runs together, side by side
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/matrices.py
	$(BIN)/python benchmarks/tasks.py

INPUTS ?= 100000
fuzz: setup ## feed every reader with damaged inputs, INPUTS=100000 each
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS)

sanitize: setup ## the kernel's tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(BIN)/python tests/kernels/sanitize.py

# All pages anew (-E): what Sphinx remembers of a page it does not warn about again.
docs: setup ## build the site from docs into docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -q -E -W --keep-going -d docs/_build/doctrees docs docs/_build/html
	@echo 'the site: docs/_build/html/index.html'

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist docs/_build src/*.egg-info src/hyperadam/kernels/native/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
