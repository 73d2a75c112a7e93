# Every target makes its own .venv and needs nothing else than Python 3.11 or newer. make PYTHON=python3.12 simulate

PYTHON ?= python3
BIN = .venv/bin
BENCH_PYTHON ?= $(BIN)/python

.PHONY: simulate test bench lint clean

simulate: .venv/installed
	$(BIN)/simulate --storage bf16 --acc f16

test: .venv/installed-dev
	@echo "All tests: about 10 minutes on two cores. A part of them: $(BIN)/pytest tests/cli"
	$(BIN)/pytest

# Rows against PyTorch need it where this runs: .venv/bin/pip install '.[torch]', or make bench BENCH_PYTHON=path/to/python
bench: .venv/installed-bench
	$(BENCH_PYTHON) -m benchmarks

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict softfloat_llm

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet -e .
	touch $@

.venv/installed-dev: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@ .venv/installed

.venv/installed-bench: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	touch $@ .venv/installed

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
