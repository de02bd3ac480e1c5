# A checkout, Python 3.11 and make are all it needs. `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.ONESHELL:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3.11
VENV := .venv
DEMO_VENV := .venv-demo
SERVERS_VENV := .venv-servers
TRANSFORMERS_VENV := .venv-transformers-5.10
VERL_VENV := .venv-verl
BIN := $(VENV)/bin
PIP_FLAGS := --disable-pip-version-check --quiet
JOBS ?= 2
PYTEST := $(BIN)/python -m pytest
export PIP_ROOT_USER_ACTION := ignore

.PHONY: help venv venv-servers venv-verl demo test test-quick test-slow test-servers test-transformers-5.10 test-verl train-demo lint format docs bench mutants clean

help: ## what each target does
	@grep -hE '^[a-z0-9.-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9.-]+):.*## (.*)/  make \1\t\2/' | expand -t 30

venv: $(VENV)/.stamp-dev ## the development environment, .venv

# A second call does nothing: each stamp is newer than what it was made from.
$(VENV)/.stamp-dev: pyproject.toml requirements-dev.txt requirements-tokens.txt scripts/make-venv.sh \
		tests/vocabularies/sources.py
	@scripts/make-venv.sh $(PYTHON) $(VENV)
	echo "installing the development requirements into $(VENV)"
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps -r requirements-dev.txt -r requirements-tokens.txt
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --no-build-isolation -e .
	$(BIN)/python -m tests.vocabularies.fetch
	touch $@

# The core alone, as a user gets it: the demo proves that it needs no extra.
$(DEMO_VENV)/.stamp: pyproject.toml requirements-dev.txt scripts/make-venv.sh
	@scripts/make-venv.sh $(PYTHON) $(DEMO_VENV)
	echo "installing agentkit's core into $(DEMO_VENV)"
	$(DEMO_VENV)/bin/python -m pip install $(PIP_FLAGS) -c requirements-dev.txt -e .
	touch $@

demo: $(DEMO_VENV)/.stamp ## bug-fixing agents in real sandboxes; ARGS="--tasks 36 --seed 1" are passed on
	@sandbox=$$(scripts/ensure-bwrap.sh)
	$(DEMO_VENV)/bin/agentkit demo --sandbox "$$sandbox" $(ARGS)

# Slow ones that only compute, on real vocabularies, run side by side as well. Of those on real time, which mostly wait,
# files do, two at a time, and beside them one by one those that look at the machine's one podman.
COMPUTING = $(wildcard tests/tokens tests/testing/test_alignment*.py tests/test_vocabular*.py tests/test_token_pages.py)
WAITING = -n 2 --dist loadfile
PODMAN = tests/sandbox/containers tests/integrations/swerex/test_docker.py
# podman, and the image of its tests: where there can be none they are skipped, but in a build (CI set) they fail.
RIG = scripts/ensure-podman.sh >/dev/null && tests/sandbox/rig/image.sh >/dev/null || true
test: $(VENV)/.stamp-dev ## all tests: the quick ones in parallel, those that compute, those on real time, those on verl
	@scripts/ensure-bwrap.sh >/dev/null
	$(RIG)
	status=0
	$(PYTEST) -q -m "not slow and not servers" -n $(JOBS) --dist worksteal || status=$$?
	$(PYTEST) -q -m "slow and not servers" -n $(JOBS) --dist worksteal $(COMPUTING) || status=$$?
	containers=$$(mktemp)
	$(PYTEST) -q -m "slow and not servers" $(PODMAN) >$$containers 2>&1 & podman=$$!
	$(PYTEST) -q -m "slow and not servers" $(WAITING) $(addprefix --ignore=,$(COMPUTING) $(PODMAN)) || status=$$?
	wait $$podman || status=$$?
	cat $$containers
	rm $$containers
	$(MAKE) test-verl ARGS= || status=$$?
	exit $$status

# vLLM wants an older transformers than the development environment has, and brings 3 GB.
$(SERVERS_VENV)/.stamp: pyproject.toml requirements-servers.txt scripts/make-venv.sh scripts/make-servers-venv.sh
	@scripts/make-venv.sh $(PYTHON) $(SERVERS_VENV)
	echo "installing vLLM and what its tests need into $(SERVERS_VENV)"
	scripts/make-servers-venv.sh $(SERVERS_VENV)
	touch $@

venv-servers: $(SERVERS_VENV)/.stamp ## the environment of test-servers, .venv-servers: vLLM for CPUs, torch, transformers

# Contracts run in `make test` as well, on recorded replies; here the same assertions meet the server itself.
SERVER_TESTS = $(wildcard tests/servers tests/integrations/hf tests/integrations/vllm tests/integrations/*/test_*contract.py)
test-servers: $(SERVERS_VENV)/.stamp ## the tests that want a real vLLM server or engine; starts and ends its own
	@$(SERVERS_VENV)/bin/python -m pytest -q -p tests.servers.plugin -m "servers or slow" \
		-W "ignore:Unclosed context:ResourceWarning" $(SERVER_TESTS) $(ARGS)  # of an engine that died

# verl pins a transformers older than the development environment's; templates are rendered by either.
$(TRANSFORMERS_VENV)/.stamp: pyproject.toml requirements-transformers-5.10.txt scripts/make-venv.sh
	@scripts/make-venv.sh $(PYTHON) $(TRANSFORMERS_VENV)
	echo "installing transformers 5.10 into $(TRANSFORMERS_VENV)"
	pip="$(TRANSFORMERS_VENV)/bin/python -m pip install $(PIP_FLAGS) --no-deps"
	$$pip -r requirements-transformers-5.10.txt
	$$pip --no-build-isolation -e .
	touch $@

# the vocabularies and templates are those of the development environment
test-transformers-5.10: $(TRANSFORMERS_VENV)/.stamp $(VENV)/.stamp-dev ## the tests of tokens on the transformers that verl pins
	@$(TRANSFORMERS_VENV)/bin/python -m pytest -q -n $(JOBS) --dist worksteal tests/tokens $(ARGS)

# verl pins a transformers of its own, and brings Ray and torch: 2 GB.
$(VERL_VENV)/.stamp: pyproject.toml requirements-verl.txt scripts/make-venv.sh scripts/make-verl-venv.sh
	@scripts/make-venv.sh $(PYTHON) $(VERL_VENV)
	echo "installing verl and what its tests need into $(VERL_VENV)"
	scripts/make-verl-venv.sh $(VERL_VENV)
	touch $@

venv-verl: $(VERL_VENV)/.stamp ## the environment of test-verl, .venv-verl: verl, Ray, torch for CPUs

test-verl: $(VERL_VENV)/.stamp ## the tests that want verl itself: real trainers, on CPUs; starts and ends its own Ray
	@scripts/ensure-bwrap.sh >/dev/null
	$(VERL_VENV)/bin/python -m pytest -q -n $(JOBS) --dist loadfile tests/verl $(ARGS)

test-quick: $(VENV)/.stamp-dev ## the quick tests only
	@$(PYTEST) -q -m "not slow and not servers" -n $(JOBS) --dist worksteal

test-slow: $(VENV)/.stamp-dev ## the tests on real time: threads, processes, sockets
	@$(RIG)
	$(PYTEST) -q -m "slow and not servers" $(WAITING) $(addprefix --ignore=,$(PODMAN))
	$(PYTEST) -q -m "slow and not servers" $(PODMAN)

train-demo: $(VERL_VENV)/.stamp ## a policy learns to use a tool: real verl on CPUs, minutes; ARGS="--seeds 3 --control" are passed on
	@$(VERL_VENV)/bin/python examples/train/train.py $(ARGS)

lint: $(VENV)/.stamp-dev ## style, format, layers, types; runs all of them before it fails
	@status=0
	run() { echo "== $$*"; "$(BIN)/$$@" || status=1; }
	run ruff check .
	run ruff format --check .
	run lint-imports --no-logo
	run mypy
	run pyright
	exit $$status

format: $(VENV)/.stamp-dev ## rewrites the sources as `make lint` wants them
	@$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .

docs: $(VENV)/.stamp-dev ## the documentation as a site, in build/site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	echo "build/site/index.html"

bench: $(VENV)/.stamp-dev ## all benchmarks, one after another; each prints machine, commit and spread
	@for script in benchmarks/[a-z]*.py; do
		echo "== $$script"
		$(BIN)/python "$$script"
	done

mutants: $(VENV)/.stamp-dev ## plants each defect of tests/mutants/*.toml and checks that its tests see it
	@$(BIN)/python tests/mutants/run.py $(ARGS)

clean: ## removes environments, caches and build outputs
	@rm -rf $(VENV) $(DEMO_VENV) $(SERVERS_VENV) $(TRANSFORMERS_VENV) $(VERL_VENV) build dist .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
