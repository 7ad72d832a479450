# All targets use one virtual environment, and make it when it is missing. Set VENV and PYTHON to
# choose its folder and its Python, and INSTALL_OPTIONS to add options of pip.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
RUN    := $(VENV)/.for-runs
READY  := $(if $(wildcard $(STAMP)),$(STAMP),$(RUN))

FAST := not live and not slow

.DEFAULT_GOAL := help
.PHONY: help install demo test test-long lint check live fuzz mutants soak bench dist boards board-pictures deploy docs reference accelerator pins clean

help: ## list all targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
		awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

install: $(STAMP) ## create .venv with the pinned versions of all packages

demo: $(READY) ## train a small model on four islands, and kill one of them
	$(BIN)/archipelago demo

test: $(STAMP) ## run all but the long tests, with real Ray and real kills (about 15 minutes)
	@.ci/tests '$(BIN)'

test-long: $(STAMP) ## run the tests that `make test` leaves out (two to three hours)
	@mkdir -p runs
	@status=0; without=; \
	.ci/chromium || without='--ignore tests/lab/test_report_page.py'; \
	$(BIN)/pytest -m 'long and not live' -n auto $$without --durations=10 --junitxml=runs/long.xml || status=1; \
	$(BIN)/pytest -m 'long and live' --durations=10 --junitxml=runs/long-live.xml || status=1; \
	exit $$status

lint: $(STAMP) ## check format, lint, types and layers (a minute)
	$(BIN)/ruff format --no-cache --check
	$(BIN)/ruff check --no-cache
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

check: lint ## run lint and the fast tests (about ten minutes)
	$(BIN)/pytest -m '$(FAST)' -n auto

live: $(STAMP) ## run only the tests on real Ray, with real kills
	$(BIN)/pytest -m live

fuzz: $(STAMP) ## break simulated clusters with a new seed, on all cores (FOR=seconds, 300)
	$(BIN)/archipelago simulate --for $(or $(FOR),300)

mutants: $(STAMP) ## run mutation tests of the rules, each guard in turn (ONLY=word); hours
	$(BIN)/python tests/mutants.py --only '$(ONLY)'

soak: $(STAMP) ## inject all kinds of faults, and report leaks (FOR=seconds, 1800)
	$(BIN)/python -m tests.soak --for $(or $(FOR),1800)

bench: $(STAMP) ## run the benchmarks and write docs/lab/benchmarks.md (BENCH="merge wire")
	$(BIN)/python -m archipelago.lab.bench.tables docs/lab/benchmarks.md $(BENCH)

dist: $(STAMP) ## build the wheel into dist/
	rm -rf build/bdist* build/lib dist *.egg-info
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	rm -rf build/bdist* build/lib
	@ls dist/*.whl

reference: $(STAMP) ## write the generated pages of docs/reference
	$(BIN)/python .ci/reference

boards: $(STAMP) ## write the boards and rules of dashboards/ again
	rm -rf dashboards
	$(BIN)/archipelago dashboards --out dashboards --at /home/you/dashboards --targets /home/you/.archipelago/targets

board-pictures: $(STAMP) ## draw the boards for the documentation, from a real run (five minutes)
	$(BIN)/python -m tests.board_pictures docs/pictures/boards

deploy: $(STAMP) ## write the example manifests of deploy/ again
	$(BIN)/archipelago manifest kuberay deploy/cpu.toml --out deploy/cpu
	$(BIN)/archipelago manifest kuberay deploy/gpu.toml --out deploy/gpu
	$(BIN)/archipelago manifest kuberay deploy/tpu-v6e.toml --out deploy/tpu-v6e --cloud gke

docs: $(VENV)/.docs ## build the documentation into build/site/ (a warning is an error)
	$(BIN)/python .ci/reference --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "built build/site/index.html"

accelerator: $(STAMP) ## build a benchmark of an accelerator without Ray: build/accelerator/
	$(BIN)/python .ci/accelerator $(BIN)/python

pins: ## rewrite constraints.txt from fresh installs on each Python
	$(PYTHON) .ci/pin

clean: ## remove environment, caches and builds, but not runs/
	rm -rf .venv* build dist *.egg-info .pytest_cache .hypothesis .ruff_cache .import_linter_cache
	find archipelago coordinator islands cluster tests -name __pycache__ -prune -exec rm -rf {} +

# Make the environment, and install the project with the extra in $(1), which may be empty.
define install
	@$(PYTHON) -c '' 2>/dev/null || { \
		echo "make: no '$(PYTHON)' here; install Python 3.11 to 3.13, or: make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "make: Python 3.11 to 3.13 is needed and $(PYTHON) is $$($(PYTHON) -V); try: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "make: $(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv" >&2; exit 2; }
	@echo "installing into $(VENV) ($(2)) ..."
	@test -x $(BIN)/pip && test "$$($(BIN)/python -V)" = "$$($(PYTHON) -V)" || \
		$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --quiet --no-input --disable-pip-version-check $(INSTALL_OPTIONS) \
		-e '.$(1)' -c constraints.txt
	@touch $@
endef

$(STAMP): pyproject.toml constraints.txt
	$(call install,[dev],three minutes, 4 GB)

$(RUN): pyproject.toml constraints.txt
	$(call install,,a minute, 1.5 GB)

$(VENV)/.docs: $(STAMP)
	@$(BIN)/python -m pip install --quiet --quiet --no-input --disable-pip-version-check $(INSTALL_OPTIONS) \
		-e '.[docs]' -c constraints.txt
	@touch $@
