# make run: set everything up and run the main job.   make test: set everything up, lint, type-check, test.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: run test lint types bench anchors clean

run: $(READY)
	$(BIN)/python -m zbench system=zeppelin workload=longtail_128k

test: $(READY) lint types
	$(BIN)/python -m pytest -n 2

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m pytest tests/bench --benchmark-only -p benchmark -o addopts=
	$(BIN)/python tests/bench/attention.py

anchors: $(READY)
	$(BIN)/python -m zbench.anchors

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m zbench.warm
	touch $(READY)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
