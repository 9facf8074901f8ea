# Everything a newcomer needs: each target sets up its own virtual environment with pinned packages first.
PYTHON ?= python3
VENV ?= .venv
MINUTES ?= 60
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo docs test-quick test test-all lint format reproduce bench soak clean

demo: $(READY)
	rm -rf out/demo
	$(BIN)/eande run gallery/lorenz96/study.py --run out/demo

# The site, build/docs/index.html: no network is needed to build or to read it.
docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -b html -d build/doctrees docs build/docs

# For the work loop, under 90 seconds on two cores: neither lint nor what takes seconds a test.
test-quick: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not thorough"

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup

test-all: lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "slow or not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reproduce: $(READY)
	$(BIN)/eande reproduce synthetic

# A quarter of an hour, on an idle machine: what users wait for against sbi; exit code 1 where a ratio
# is below 0.7 times that of results/speed.json.
bench: $(READY)
	$(BIN)/python benchmarks/speed.py $(if $(wildcard results/speed.json),--check --output out/speed.json)

# An hour of kills, full disks, several writers and fuzzed files; exit code 1 on a failure.
soak: $(READY)
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES) --seed 0

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "eande needs Python 3.11 or newer, got $$($(PYTHON) --version); set PYTHON="; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) out build .pytest_cache .mypy_cache .ruff_cache .hypothesis
