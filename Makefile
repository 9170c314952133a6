# Everything is built, run and checked from here. `make help` lists the targets.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup setup-tests demo test check bench mutants nightly protos lock clean

help: ## List these targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do printf '  %-12s %s\n' "$$name" "$$text"; done

setup: $(READY) ## Create .venv with the pinned dependencies and the command .venv/bin/nightside. PYTHON=… picks the interpreter.

$(READY): requirements-dev.lock pyproject.toml
	@PYTHON="$(PYTHON)" .ci/setup
	@touch $@

setup-tests: ## Make sure that every program the tests start is on this machine.
	@.ci/setup-tests

demo: setup ## Run three regions on this machine and show what forwarding gains. SERVE=1 keeps them up.
	$(BIN)/nightside demo $(if $(SERVE),--serve)

test: setup ## Run every test. ARGS=… goes to pytest.
	$(BIN)/python -m pytest -n 2 --session-timeout=600 $(ARGS)

check: setup ## Lint, format, types, layers, and the protobuf files and their stubs.
	@.ci/check

bench: setup ## Measure the parts that every request passes through.
	$(BIN)/nightside bench

mutants: setup ## Seed defects into the core, one at a time, and see that the simulator's chaos finds each.
	$(BIN)/python tests/mutants/run.py

nightly: test bench mutants ## Everything that takes long.
	$(BIN)/nightside sim --chaos --runs 10000 --seed 1000

protos: setup ## Generate the stubs of the .proto files again.
	.ci/protos .

lock: ## Pin the dependencies of pyproject.toml with their hashes. UPGRADE=1 takes the newest versions.
	PYTHON="$(PYTHON)" UPGRADE="$(UPGRADE)" .ci/lock

clean: ## Remove the environment, the caches and everything built.
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist out *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
