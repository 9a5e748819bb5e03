# make run: set up what the main job needs and run it.   make test: set everything up, lint, type-check, test.
# make figures: the papers' figures, after making the records that are missing or that other sources made.
PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/.core
INSTALLED := .venv/.installed
WARM := .venv/.warm
READY := .venv/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

unexport PYTHONDONTWRITEBYTECODE # containers set it, and each of the tests' processes would compile all that it imports

.PHONY: run test test-thorough lint types meanwhile bench gate baseline docs anchors figures standing desk clean

# What it compiles is compiled by the run itself; the rest of the project waits for make test.
run: $(CORE)
	$(BIN)/python -m zbench system=zeppelin workload=longtail_128k

# Kernels are compiled on one core while everything else is installed, and types are checked, on another, which compiles
# the rest of them and the tests' modules then: three processes of tests would each do it. Then three tests at a time on
# the two cores, as a seventh of the time one waits for its processes, and of one thread each: threads that wait for a
# busy core keep it busier.
test:
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint types meanwhile $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal --durations=12

# What make test leaves out for the time it takes: 50 times as many examples of most property tests, others each time,
# and all combinations where one in two or three is tried (tests/helpers/examples.py). Hours.
test-thorough: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal --hypothesis-profile=thorough --timeout=14400

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

# What is compiled by one of two processes the other reads; they meet in the midst of the systems.
meanwhile: lint types
	$(BIN)/python -m pytest --collect-only -qq > /dev/null || true # what fails is told by the tests themselves
	test -e $(WARM) || $(BIN)/python -m zbench.warm --backwards

bench: $(READY)
	$(BIN)/python -m pytest tests/bench --benchmark-only -p benchmark -o addopts=
	$(BIN)/python tests/bench/attention.py

# Every system on three workloads, simulated anew: fails where one is more than 2 % slower than results/ci/base.jsonl.
gate: $(READY)
	rm -f results/ci.jsonl
	$(BIN)/python -m zbench experiment=ci
	$(BIN)/python -m zbench.compare results/ci/base.jsonl results/ci.jsonl --fail-over 2%

baseline: $(READY)
	rm -f results/ci.jsonl
	$(BIN)/python -m zbench experiment=ci
	mv results/ci.jsonl results/ci/base.jsonl

docs: $(READY)
	$(BIN)/mkdocs build --strict

anchors: $(READY)
	$(BIN)/python -m zbench.anchors

figures: $(READY)
	$(BIN)/python -m zbench.figures all --run

# The tables of docs/standing.md, 40 minutes of one core. Stopped, it goes on where it was.
standing: $(READY)
	$(BIN)/python -m zbench experiment=nodewise
	$(BIN)/python -m zbench experiment=nodewise_published
	$(BIN)/python -m zbench.standing --markdown --over static_best $(foreach nodes,2 4 8,results/nodewise_*_$(nodes).jsonl)

# What docs/desk.md has, measured anew on emulated nodes of this machine, and its pictures: root's rights or user
# namespaces, and 25 minutes in which nothing else runs. Stopped, it goes on where it was.
desk: $(READY)
	$(BIN)/python -m zbench.desk measure cluster=desk_2x4_a800
	$(BIN)/python -m zbench.figures desk_systems desk_nics desk_parts --run
	$(BIN)/python -m zbench experiment=desk_overlap rerun=false
	$(BIN)/python -m zbench.desk overlap results/desk_overlap.jsonl
	$(BIN)/python -m zbench.compare results/paper/desk_systems.jsonl --pivot step_seconds,speedup,nic_idle,invalid_steps
	$(BIN)/python -m zbench.compare results/paper/desk_parts.jsonl --pivot step_seconds,speedup,invalid_steps
	$(BIN)/python -m zbench.fidelity --out results/paper/desk_systems.jsonl --markdown

$(READY): $(WARM) $(INSTALLED)
	touch $(READY)

$(WARM): $(CORE)
	$(BIN)/python -m zbench.warm
	touch $(WARM)

# --no-compile: of the 15,000 modules of all packages only those that are used get compiled, when they are.
$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $(CORE)

$(INSTALLED): $(CORE)
	$(PIP) -e '.[dev]'
	touch $(INSTALLED)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
