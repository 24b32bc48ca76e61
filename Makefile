# Each target does all of its set-up: a virtual environment in .venv, then the package in it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all check docs bench gpu soak fuzz clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   train the embedded data set on two ranks, kill one, compare with one rank, write runs/demo/report.html (4 to 9 minutes)"
	@echo "make test   run the tests that every change must pass (10 to 20 minutes on 2 cores)"
	@echo "make test-all  run all tests, also those marked long (before a release, and every night)"
	@echo "make check  format, lint, types, docs"
	@echo "make docs   build the pages in docs/ as a site, build/site"
	@echo "make bench  measure step, memory, loader, evaluation, start and growth next to plain PyTorch, and name what got worse (5 minutes)"
	@echo "make gpu    on a machine with a GPU: its tests, then steps beside a plain loop, as graphs, fed from files, by precision, in runs/gpu (9 minutes)"
	@echo "make fuzz   give mutated inputs to every reader of files (INPUTS=1000000 SEED=0; about an hour)"
	@echo "make soak   kill a small training again and again, and see that nothing is lost (KILLS=200 SEED=0)"

.venv/installed: pyproject.toml
	@echo "== setting up .venv (once; downloads PyTorch, 1 to 3 minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Phalanx needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=...")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: .venv/installed
	@$(BIN)/python tools/demo.py

# Three at a time on two cores: many wait for processes that they start. A worker that runs dry takes tests of the others.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal --durations=25

test: .venv/installed
	@echo "== tests"
	@$(PYTEST) -m "not long"

test-all: .venv/installed
	@echo "== all tests"
	@$(PYTEST)

check: .venv/installed
	@echo "== format"
	@$(BIN)/ruff format --check .
	@echo "== lint"
	@$(BIN)/ruff check .
	@echo "== types"
	@$(BIN)/mypy
	@echo "== docs"
	@$(BIN)/mkdocs build --strict --quiet

docs: .venv/installed
	@$(BIN)/python tools/keys.py
	@$(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

bench: .venv/installed
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/ratios.py $(BENCH)

# With the torch that is there, if there is one (its build fits the driver); DEVICE=cpu shows that it works, in tiny sizes.
DEVICE ?= cuda
GPU_SECONDS ?= 530
GPU_PYTHON = $(shell $(PYTHON) -c 'import torch, torchvision, cv2, pytest; print("$(PYTHON)")' 2>/dev/null || echo $(BIN)/python)

gpu:
	@$(PYTHON) -c 'import torch, torchvision, cv2, pytest' 2>/dev/null || $(MAKE) --no-print-directory .venv/installed
	@PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(GPU_PYTHON) benchmarks/gpu.py --device $(DEVICE) --seconds $(GPU_SECONDS) --out runs/gpu

KILLS ?= 200
SEED ?= 0

soak: .venv/installed
	@echo "== $(KILLS) faults at random moments of a small training (hours; KILLS=n SEED=n change it)"
	@PYTHONPATH=tests $(BIN)/python -m faults.soak --kills $(KILLS) --seed $(SEED)

INPUTS ?= 1000000

fuzz: .venv/installed
	@echo "== $(INPUTS) mutated inputs; what the libraries say of them goes to runs/fuzz.log"
	@mkdir -p runs
	@PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m faults.fuzz --inputs $(INPUTS) --seed $(SEED) 2>runs/fuzz.log

clean:
	rm -rf .venv runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
