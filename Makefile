# Everything runs from one virtual environment, made at first need: VENV and PYTHON can be set.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

FAST := not live and not slow

.DEFAULT_GOAL := help
.PHONY: help install demo test test-long lint check live fuzz mutants soak bench dist docs reference accelerator pins clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
		awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

install: $(STAMP) ## make .venv and install the pinned versions into it

demo: $(STAMP) ## the main job: train a small model on islands that come and go
	$(BIN)/archipelago run examples/demo.toml

test: $(STAMP) ## all but the long tests, real Ray and real kills included (15 minutes)
	@.ci/tests '$(BIN)'

test-long: $(STAMP) ## the tests that `make test` leaves out (an hour and more)
	@mkdir -p runs
	@status=0; \
	$(BIN)/pytest -m 'long and not live' -n auto --durations=10 --junitxml=runs/long.xml || status=1; \
	$(BIN)/pytest -m 'long and live' --durations=10 --junitxml=runs/long-live.xml || status=1; \
	exit $$status

lint: $(STAMP) ## format, lint, types, floors (a minute)
	$(BIN)/ruff format --no-cache --check
	$(BIN)/ruff check --no-cache
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

check: lint ## ... and the fast tests (under four minutes)
	$(BIN)/pytest -m '$(FAST)' -n auto

live: $(STAMP) ## only the tests on real Ray, with real kills
	$(BIN)/pytest -m live

fuzz: $(STAMP) ## schedules of a new seed against the rules, on all cores (FOR=seconds, 300)
	$(BIN)/archipelago simulate --for $(or $(FOR),300)

mutants: $(STAMP) ## remove each guard of the rules in turn, count who notices (ONLY=word); hours
	$(BIN)/python tests/mutants.py --only '$(ONLY)'

soak: $(STAMP) ## half an hour of faults of all kinds, and what grew or stayed (FOR=seconds)
	$(BIN)/python -m tests.soak --for $(or $(FOR),1800)

bench: $(STAMP) ## measure, and write the tables of docs/lab/benchmarks.md (BENCH="merge wire": only these)
	$(BIN)/python -m archipelago.lab.bench.tables docs/lab/benchmarks.md $(BENCH)

dist: $(STAMP) ## build the wheel, with the changelog in it: dist/
	rm -rf build/bdist* build/lib dist *.egg-info
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	rm -rf build/bdist* build/lib
	@ls dist/*.whl

reference: $(STAMP) ## write the generated pages of docs/reference
	$(BIN)/python .ci/reference

docs: $(STAMP) ## build the documentation: build/site/ (under a minute; a warning is an error)
	$(BIN)/python .ci/reference --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "built build/site/index.html"

accelerator: $(STAMP) ## a folder that measures an accelerator without Ray: build/accelerator/
	$(BIN)/python .ci/accelerator $(BIN)/python

pins: ## write constraints.txt anew, from fresh installs on each Python found
	$(PYTHON) .ci/pin

clean: ## remove the environment, the caches and what was built; runs/ stays
	rm -rf .venv* build dist *.egg-info .pytest_cache .hypothesis .ruff_cache .import_linter_cache
	find archipelago coordinator islands cluster tests -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c '' 2>/dev/null || { \
		echo "make: no '$(PYTHON)' here; install Python 3.11 or newer, or: make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: Python 3.11 or newer is needed and $(PYTHON) is older; try: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "make: $(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv" >&2; exit 2; }
	@echo "installing into $(VENV) (about a minute, 1.5 GB) ..."
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --quiet --no-input --disable-pip-version-check \
		-e '.[dev]' -c constraints.txt
	@touch $@
