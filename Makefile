# Each target does all of its set-up: a virtual environment in .venv, then the package in it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check bench soak clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   train the embedded data set on two ranks, compare with one, write runs/demo/report.html (4 minutes)"
	@echo "make test   run all tests"
	@echo "make check  format, lint, types"
	@echo "make bench  measure a training step on one core, in float32 and bf16, and print where its time goes (1 minute)"
	@echo "make soak   kill a small training again and again, and see that nothing is lost (KILLS=200 SEED=0)"

.venv/installed: pyproject.toml
	@echo "== setting up .venv (once; downloads PyTorch, 1 to 3 minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Phalanx needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=...")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: .venv/installed
	@$(BIN)/python tools/demo.py

# Two at a time: many wait for processes that they start; a worker that runs dry takes tests of the other.
test: .venv/installed
	@echo "== tests"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/installed
	@echo "== format"
	@$(BIN)/ruff format --check .
	@echo "== lint"
	@$(BIN)/ruff check .
	@echo "== types"
	@$(BIN)/mypy

bench: .venv/installed
	@OMP_NUM_THREADS=1 $(BIN)/phalanx bench train pp_liteseg_digits --steps 5 --warmup 2 --precision fp32,bf16 --channels_last both \
		--set device=cpu 'data.size=[256,512]' train.global_batch_size=4 train.workers=0 data.eval_scenes=1

KILLS ?= 200
SEED ?= 0

soak: .venv/installed
	@echo "== $(KILLS) faults at random moments of a small training (hours; KILLS=n SEED=n change it)"
	@PYTHONPATH=tests $(BIN)/python -m faults.soak --kills $(KILLS) --seed $(SEED)

clean:
	rm -rf .venv runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
