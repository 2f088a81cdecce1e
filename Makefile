# Everything a newcomer or CI runs. `make help` lists the targets.
CLUSTER ?= lab
VENV    := .venv
BIN     := $(VENV)/bin
PYTEST  := $(BIN)/python -m pytest

# What failed beside other tests is tried once more: it counts as failed where it fails alone too.
AGAIN  := === what failed beside others, once more and alone
FAILED := --last-failed --last-failed-no-failures none
# Many tests wait for what they have started.
SIDE   := --numprocesses $(shell echo $$(($$(nproc) * 3 / 2)))
# In the order of the tests, where what takes longest comes first: the whole cluster.
BESIDE  = --numprocesses $(LANES) --dist loadgroup --no-loadscope-reorder
WHOLE  := --ignore tests/unit --ignore tests/stacks -m "not services and not testbeds and not vms and not simulated and not faults and not sizes and not experiment and not endurance and not walk and not long"

.DEFAULT_GOAL := help
.PHONY: help setup up down test test-roles test-long test-services test-testbeds test-vms test-gpu test-faults test-docs test-exposure test-sizes test-experiment test-endurance test-live screenshots fuzz bench audit lint format docs lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: ## virtual environment, system packages and a Docker daemon
	@./setup.sh run

up: setup ## bring CLUSTER up (lab): allocate, configure, verify
	@$(BIN)/gpubed up $(CLUSTER)

down: setup ## remove CLUSTER and everything that carries its id
	@$(BIN)/gpubed down $(CLUSTER) -y

test: ## lint, unit, contract, stacks, one whole cluster: all that can run here; LANES=2 with clusters side by side
	@./setup.sh test
	@$(MAKE) --no-print-directory lint
	@code=0; \
	  $(PYTEST) tests/unit tests/stacks -q $(SIDE) --dist worksteal --durations=15 || \
	    { echo "$(AGAIN)"; $(PYTEST) tests/unit tests/stacks $(FAILED); } || code=1; \
	  $(PYTEST) tests $(WHOLE) $(if $(LANES),$(BESIDE)) --durations=25 $(if $(LANES),|| \
	    { echo "$(AGAIN)"; $(PYTEST) tests $(WHOLE) $(FAILED); }) || code=1; \
	  exit $$code

test-long: ## what takes minutes for one promise: Ansible without a strategy of ours, any number of ranks
	@./setup.sh test
	@$(PYTEST) tests -m long

test-services: ## Slurm, containers, monitoring and datasets on a whole cluster
	@./setup.sh test
	@$(PYTEST) tests/e2e -m services

test-testbeds: ## nodes of servers and hosts that stand for each testbed, up to a finished job; TESTS=tests/contract for a part
	@./setup.sh test
	@$(PYTEST) $(or $(TESTS),tests) -m testbeds

test-vms: ## virtual machines: the contract of the backend, NFS and RDMA between two of them
	@./setup.sh test
	@GPUBED_VM=1 $(PYTEST) tests -m vms

test-gpu: ## the whole way of GPU clusters, on nodes that pretend to have GPUs
	@./setup.sh test
	@GPUBED_VM=1 GPUBED_KEEP=1 $(PYTEST) tests/e2e/test_gpu.py tests/e2e/test_gpu_static.py tests/e2e/test_gpu_vms.py

test-roles: ## molecule: every role and distribution; ROLES="nfs docker" IMAGES=debian-12 CHANGED=1 for a part
	@./setup.sh test
	@$(BIN)/python tests/molecule/matrix.py $(ROLES) --images $(IMAGES) --jobs $(or $(JOBS),1) $(if $(CHANGED),--changed) $(if $(MINUTES),--minutes $(MINUTES))

test-faults: ## break small clusters, follow each hint to its end; writes docs/reference/faults.md; FAULTS="killed key" for a part
	@./setup.sh test
	@$(BIN)/python -m tests.faults $(FAULTS)
	@$(if $(FAULTS),true,$(PYTEST) tests/e2e -m faults)

test-exposure: ## what the running CLUSTER shows to its networks; writes docs/reference/security.md
	@./setup.sh test
	@$(BIN)/python -m tests.exposure $(CLUSTER)

test-docs: ## README, tutorial and how-to pages as written, in terminals and without; WAYS="root-80 user-none" for a part
	@./setup.sh test
	@WAYS="$(WAYS)" $(PYTEST) tests/e2e -m walk

test-sizes: ## 1, 2, 3 and 10 nodes from up to down, with times; writes docs/reference/performance.md
	@./setup.sh test
	@$(PYTEST) tests/e2e -m sizes
	@$(BIN)/python docs/generate.py

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

fuzz: ## what nobody should write, to every reader; FUZZ_SECONDS=60 each, FUZZ="state manifest" for a part
	@./setup.sh test
	@$(BIN)/python -m tests.fuzz

bench: ## speed, as ratios in one run
	@./setup.sh test
	@$(BIN)/python -m tests.bench

audit: ## secrets in what is committed, known holes in what is installed; BASELINE=1 takes what is found for none
	@./setup.sh test
	@$(BIN)/python -m tests.audit

lint: ## ruff, mypy, ansible-lint
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
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
