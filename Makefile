# Everything a newcomer or CI runs. `make help` lists the targets.
CLUSTER ?= lab
VENV    := .venv
BIN     := $(VENV)/bin
PYTEST  := $(BIN)/python -m pytest

# $(1) are tests, $(2) is how they run beside each other. What failed so is tried once more: it
# counts as failed where it fails alone too.
AGAIN = === what failed beside others, once more and alone
FAILED = --last-failed --last-failed-no-failures none
twice = $(PYTEST) $(1) $(2) || { echo "$(AGAIN)"; $(PYTEST) $(1) $(FAILED); } || code=1

CORES := $(shell nproc)
# In the order of the tests, where what takes longest comes first: the whole cluster.
LANED := --dist loadgroup --no-loadscope-reorder --numprocesses
# The marks of the parts below, and of what has a target of its own: not for `test` or `test-all`.
NIGHTLY := services testbeds vms simulated faults sizes walk golden long
LATER := $(NIGHTLY:%=and not %) and not experiment and not endurance

PARTS ?= $(NIGHTLY) roles fuzz
part.services = $(PYTEST) tests/e2e -m services
part.testbeds = $(PYTEST) $(or $(TESTS),tests) -m testbeds
part.vms = GPUBED_VM=1 $(PYTEST) tests -m vms
part.simulated = GPUBED_VM=1 GPUBED_KEEP=1 $(PYTEST) tests/e2e/test_gpu.py tests/e2e/test_gpu_static.py tests/e2e/test_gpu_vms.py
part.faults = $(BIN)/python -m tests.faults $(FAULTS) $(if $(FAULTS),,&& $(PYTEST) tests/e2e -m faults)
part.sizes = $(PYTEST) tests/e2e -m sizes && $(BIN)/python docs/generate.py
part.walk = WAYS="$(WAYS)" $(PYTEST) tests/e2e -m walk
part.golden = $(PYTEST) tests/golden -m golden
part.long = $(PYTEST) tests -m long
part.roles = $(BIN)/python tests/molecule/matrix.py $(ROLES) --images $(IMAGES) --jobs $(or $(JOBS),1) $(if $(CHANGED),--changed) $(if $(MINUTES),--minutes $(MINUTES))
part.fuzz = ulimit -v 4194304 && FUZZ=$(or $(FUZZ),5000) $(PYTEST) tests/unit/test_readers.py -k changed

.DEFAULT_GOAL := help
.PHONY: help setup up down test test-all test-nightly test-gpu test-live test-experiment test-endurance exposure screenshots bench audit lint lint-python lint-ansible format docs lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 17

setup: ## virtual environment, system packages and a Docker daemon
	@./setup.sh run

up: setup ## bring CLUSTER up (lab): allocate, configure, verify
	@$(BIN)/gpubed up $(CLUSTER)

down: setup ## remove CLUSTER and everything that carries its id
	@$(BIN)/gpubed down $(CLUSTER) -y

test: ## lint, unit tests that start no process, what is marked quick (one whole cluster): 15 minutes
	@./setup.sh test
	@$(MAKE) --no-print-directory lint-python
	@code=0; \
	  $(call twice,tests/unit -m "not process",-q --durations=15 --dist worksteal --numprocesses $(CORES)); \
	  $(call twice,tests --ignore tests/unit -m "quick $(LATER)",--durations=15 $(LANED) 2); \
	  exit $$code

test-all: ## the rest that can run here; LANES=2 with clusters side by side
	@./setup.sh test
	@$(MAKE) --no-print-directory lint-ansible
	@code=0; \
	  $(call twice,tests/unit -m process,-q --durations=15 --dist worksteal --numprocesses $$(($(CORES) * 3 / 2))); \
	  $(call twice,tests --ignore tests/unit -m "not quick $(LATER)",--durations=25 $(if $(LANES),$(LANED) $(LANES))); \
	  exit $$code

test-nightly: ## virtual machines, testbeds, faults, walks and more, for hours; PARTS="vms faults" for a part
	@./setup.sh test
	@code=0; \
	  $(foreach part,$(PARTS),echo "=== $(part)"; { $(or $(part.$(part)),$(error there is no part '$(part)')); } || code=1;) \
	  exit $$code

test-gpu: ## the whole way of GPU clusters, on nodes that pretend to have GPUs
	@./setup.sh test
	@$(part.simulated)

test-experiment: ## a matrix of trainings on three nodes, killed twice, reported, repeated; writes docs/reference/experiment.md
	@./setup.sh test
	@$(PYTEST) tests/e2e -m experiment
	@$(BIN)/python docs/generate.py

test-endurance: ## trainings and a watch under faults, for hours; writes docs/reference/endurance.md
	@./setup.sh test
	@$(PYTEST) tests/e2e -m endurance
	@$(BIN)/python docs/generate.py

test-live: ## what needs a testbed or the real Pulumi CLI
	@./setup.sh test
	@$(PYTEST) tests -m live

exposure: ## what the running CLUSTER shows to its networks; writes docs/reference/security.md
	@./setup.sh test
	@$(BIN)/python -m tests.exposure $(CLUSTER)

bench: ## speed, as ratios in one run
	@./setup.sh test
	@$(BIN)/python -m tests.bench

audit: ## secrets in what is committed, known holes in what is installed; BASELINE=1 takes what is found for none
	@./setup.sh test
	@$(BIN)/python -m tests.audit

lint: lint-python lint-ansible ## ruff, mypy, ansible-lint

lint-python:
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy

lint-ansible:
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint -q --offline

format: ## rewrite the sources in the project's style
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

docs: ## write docs/reference from the code
	@./setup.sh test
	@$(BIN)/python docs/generate.py

screenshots: ## write docs/images: terminals and pages of a cluster that is made for them
	@./setup.sh test
	@$(BIN)/python -m tests.screenshots

lock: ## resolve the dependencies anew
	@$(BIN)/uv pip compile -q --generate-hashes --no-emit-index-url --no-header --universal \
	  --python-version 3.11 pyproject.toml --group build -o requirements.lock
	@$(BIN)/uv pip compile -q --generate-hashes --no-emit-index-url --no-header --universal \
	  --python-version 3.11 pyproject.toml --group dev -c requirements.lock -o requirements-dev.lock

clean: ## remove the virtual environment
	@rm -rf $(VENV)
