# Everything is built, run and checked from here. `make help` lists the targets.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE # tests start many processes, which would compile every module again
.PHONY: help setup setup-tests compiled relays clean demo test test-fast test-nightly flakes check test-compiled test-engines test-cloud test-clients test-issuers check-deploy fuzz digests mutants random-mutants soak upgrade kills nightly bench bench-relay bench-scale agreement answers outside results wan docs metrics-page log-events-page errors-page runbook-page config-pages command-line-page page-picture protos lock

##@ Setup

help: ## List these targets.
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-32s%s\n", $$1, $$2}' Makefile

setup: $(READY) ## Create .venv with pinned dependencies and the command nightside; PYTHON=python3.11.

$(READY): requirements-dev.lock pyproject.toml
	@PYTHON="$(PYTHON)" .ci/setup
	@touch $@

setup-tests: ## Check for the programs that tests start, and create .venv-cloud with emulators of AWS.
	@.ci/setup-tests
	@PYTHON="$(PYTHON)" .ci/setup-cloud || [ $$? = 69 ]

compiled: setup ## Build build/compiled, with the core compiled by mypyc; needs a C compiler.
	@.ci/compile

relays: ## Install the relays that bench-relay and NAME=live compare with, into .venv-relay.
	@PYTHON="$(PYTHON)" .ci/setup-relays

clean: ## Remove the environments, caches and builds.
	rm -rf .venv .venv-cloud .venv-deploy .venv-docs .venv-engines .venv-engines-oracle .venv-kubernetes .venv-llamacpp .venv-mutants .venv-outside .venv-relay .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist out *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

##@ Run

demo: setup ## Run three regions; SERVE=1 KILL=region FLEET=large DISAGGREGATED=1 ENGINE=llamacpp.
	$(if $(ENGINE),@PYTHON="$(PYTHON)" .ci/setup-engines $(ENGINE))
	$(BIN)/nightside demo $(if $(SERVE),--serve) $(if $(KILL),--kill $(KILL)) $(if $(FLEET),--fleet $(FLEET)) $(if $(DISAGGREGATED),--disaggregated) $(if $(ENGINE),--$(ENGINE) .venv-$(ENGINE)/bin/python)

##@ Test

test: setup setup-tests ## Run the tests on emulated engines, but for the long ones; ARGS=… goes to pytest.
	$(BIN)/python -m pytest -q -n 3 --dist worksteal --session-timeout=3000 --durations=10 -m "not nightly" $(ARGS)

test-fast: setup ## Run the tests that need no socket and no process; ARGS as above.
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --durations=10 -m "not nightly and not real" $(or $(ARGS),tests/unit tests/property tests/simulation)

test-nightly: setup setup-tests ## Run the long tests that make test leaves out; ARGS as above.
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --durations=10 -m nightly $(ARGS)

flakes: setup setup-tests ## Run the tests N=10 times in random order, beside BUSY=n processes; list failures.
	$(BIN)/python -m tests.support.flakes --rounds $(or $(N),10) --busy $(or $(BUSY),0) -n 3 --dist worksteal -m "not nightly" $(ARGS)

check: setup ## Lint, format, check types, layers, prose and protobuf files.
	@.ci/check

test-compiled: compiled ## Test the core, the simulator and the HTTP edge on the compiled core.
	@.ci/test-compiled

test-engines: setup ## Test on real vLLM and llama.cpp on the CPU; REQUIRE=1 fails instead of skipping.
	@for engine in vllm vllm-oracle llamacpp; do PYTHON="$(PYTHON)" .ci/setup-engines $$engine || [ $$? = 69 ] || exit 1; done
	nice $(BIN)/python -m pytest tests/engines $(if $(REQUIRE),--require-engines) $(ARGS)

test-cloud: setup setup-tests ## Test DNS providers and stores on real servers and AWS emulators; REQUIRE=1 as above.
	nice $(BIN)/python -m pytest tests/cloud -n 2 --dist loadfile $(if $(REQUIRE),--require-cloud) $(ARGS)

test-clients: setup ## Test JavaScript SDKs and a page in Chromium against a gateway; REQUIRE=1 as above.
	@.ci/setup-clients || [ $$? = 69 ]
	nice $(BIN)/python -m pytest tests/clients $(if $(REQUIRE),--require-clients) $(ARGS)

test-issuers: setup ## Test against a certified OpenID provider; REQUIRE=1 as above.
	@.ci/setup-issuers || [ $$? = 69 ]
	nice $(BIN)/python -m pytest tests/issuers $(if $(REQUIRE),--require-issuers) $(ARGS)

check-deploy: setup setup-tests ## Check Terraform, images, chart and units without a cloud; ARGS=… goes to pytest.
	@PYTHON="$(PYTHON)" .ci/setup-deploy
	@PYTHON="$(PYTHON)" .ci/setup-kubernetes
	@.ci/setup-tests .ci/deploy-programs
	nice $(BIN)/python -m pytest tests/deploy -n 2 --dist loadfile --timeout=900 $(ARGS)

fuzz: setup ## Fuzz every parser of untrusted bytes with 20,000 mutations; EXAMPLES=n, ARGS=-k….
	nice $(BIN)/python -m pytest tests/fuzz -n 0 --timeout=0 --hypothesis-profile=exploring --fuzz-examples=$(or $(EXAMPLES),20000) $(ARGS)

digests: setup ## Compare decisions in 400 simulated worlds with tests/digests; ARGS=--write.
	$(BIN)/python -m tests.digests.run $(ARGS)

mutants: setup ## Seed defects into the core, and verify that a test or chaos finds each.
	$(BIN)/python -m tests.mutants.run

random-mutants: setup ## Run tests on 200 mutants drawn at random, an hour; ARGS="--seed n --count n --json f".
	@.ci/setup-mutants
	nice .venv-mutants/bin/python -m tests.mutants.drawn $(ARGS)

soak: setup ## Send an hour's requests with faults in minutes, and verify that nothing grows.
	$(BIN)/python -m pytest tests/integration/faults/test_soak.py -s --soak-requests 18000

upgrade: setup ## Upgrade a mesh from FROM=ref, or the newest tag, and back, under load.
	$(BIN)/python -m tests.upgrade.run $(if $(FROM),--from $(FROM)) $(ARGS)

kills: setup setup-tests ## Kill processes of each kind while a batch runs, in docs/results/batch_kills.md.
	$(BIN)/python -m tests.kills.run $(ARGS)

nightly: test test-nightly digests fuzz test-engines test-cloud test-clients test-issuers bench mutants random-mutants soak ## Run all of the above but check, check-deploy, flakes; also properties, chaos.
	nice $(BIN)/python -m pytest tests/property --hypothesis-profile=exploring
	nice $(BIN)/python -m pytest tests/unit -m hypothesis --hypothesis-profile=exploring
	$(BIN)/nightside sim --chaos --runs 10000 --seed 1000
	$(BIN)/nightside sim --chaos controller --runs 1000 --seed 1000
	$(BIN)/nightside sim --chaos disaggregated --runs 1000 --seed 1000
	$(BIN)/nightside sim --chaos breaking --runs 1000 --seed 1000
	$(BIN)/nightside sim --chaos silent --runs 1000 --seed 1000
	$(BIN)/nightside sim --chaos unsteady --runs 1000 --seed 1000
	$(BIN)/nightside sim --chaos batches --runs 1000 --seed 1000
	$(BIN)/nightside sim --chaos pair --runs 1000 --seed 1000
	$(BIN)/nightside sim --chaos moving-pools --runs 1000 --seed 1000
	@.ci/compile && .ci/test-compiled || [ $$? = 69 ]
	@mkdir -p build/upgrade && $(BIN)/python -m tests.upgrade.run -o build/upgrade/upgrade.md || [ $$? = 69 ]
	@mkdir -p build/kills && $(BIN)/python -m tests.kills.run -o build/kills/batch_kills.md || [ $$? = 69 ]

##@ Measure

bench: setup ## Measure the components that every request passes through.
	$(BIN)/nightside bench

bench-relay: compiled relays ## Measure a gateway beside other relays, in docs/results/relay.md; ARGS=--quick.
	cd build/compiled && ../../$(BIN)/python -m nightside bench relay --rivals ../../.venv-relay -o ../../docs/results/relay.md $(ARGS)

bench-scale: compiled ## Measure the simulator on large fleets, in docs/results/scale.json; twelve minutes.
	cd build/compiled && ../../$(BIN)/python -m nightside bench scale -o ../../docs/results/scale.json $(ARGS)

agreement: setup ## Compare live regions with the simulator, in docs/results/agreement.json; six minutes.
	$(BIN)/nightside agreement -o docs/results/agreement.json

answers: setup ## Compare answers through gateways with llama.cpp's own, in docs/results/answers.md.
	@PYTHON="$(PYTHON)" .ci/setup-engines llamacpp
	nice $(BIN)/python -m pytest -q tests/engines/test_answers_unchanged.py --require-engines --answers-page docs/results/answers.md

outside: setup ## Run tools of other projects on three regions, in docs/results/outside.md.
	@PYTHON="$(PYTHON)" .ci/setup-outside
	$(BIN)/nightside results outside $(ARGS)

##@ Results, each a page of docs/results

NEEDED_eldr := compiled
NEEDED_live := relays
NEEDED_capacity := compiled
NEEDED_records := setup-tests
LIVE := live failover composition resume succession token-budget-live wan long capacity
IN_eldr := cd build/compiled && nice ../../$(BIN)/python -m nightside results eldr -o ../../docs/results --cache ../results
IN_capacity := cd build/compiled && ../../$(BIN)/python -m nightside results capacity -o ../../docs/results --scale ../../docs/results/scale.json
IN_records := $(BIN)/python -m tests.cloud.measure_records -o docs/results/failover_records.md

results: setup $(NEEDED_$(NAME)) ## Repeat NAME=study or records, or list; TRACES=dir FULL=1 REAL=1 STORES="a.yaml" ARGS=…
	$(if $(filter token-budget-classifier,$(NAME)),loadgen/studies/prompts/gather.sh build/prompts)
	$(if $(REAL),.ci/setup-engines llamacpp)
	$(if $(filter wan,$(NAME)),.ci/setup-tests .ci/wan-programs)
	$(or $(IN_$(NAME)),$(if $(filter $(LIVE),$(NAME)),,nice) $(BIN)/nightside results $(or $(NAME),--help)) \
	    $(if $(filter token-budget-classifier,$(NAME)),build/prompts/documents.jsonl) $(STORES) \
	    $(if $(TRACES),--traces $(abspath $(TRACES))) $(if $(FULL),--full) $(if $(REAL),--real .venv-llamacpp/bin/python) $(ARGS)

wan: ## Break the network between three hosts, in docs/results/wan.md; needs root; ARGS=….
	@$(MAKE) results NAME=wan

##@ Generate

docs: ## Build the documentation site in build/docs; broken links and anchors fail.
	@PYTHON="$(PYTHON)" .ci/setup-docs
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

metrics-page: setup ## Write docs/reference/metrics.md and controller_metrics.md: every series.
	$(BIN)/nightside gateway metrics --rules deploy/prometheus/nightside.rules.yaml -o docs/reference/metrics.md
	$(BIN)/nightside controller metrics -o docs/reference/controller_metrics.md

log-events-page: setup ## Write docs/reference/log_events.md: every log event, and what to do.
	$(BIN)/nightside controller log-events -o docs/reference/log_events.md

errors-page: setup ## Write docs/reference/errors.md: every error of clients, and what to do.
	$(BIN)/nightside gateway errors -o docs/reference/errors.md

runbook-page: setup ## Write the runbook that the status page links to, from the sections on alerts.
	$(BIN)/python -m loadgen.pages.runbook

config-pages: setup ## Write docs/reference/*_file.md, and comments of the examples: every key.
	$(BIN)/nightside gateway config-keys --example docs/examples/every_key.yaml -o docs/reference/region_file.md
	$(BIN)/nightside controller config-keys --example docs/examples/every_controller_key.yaml -o docs/reference/controller_file.md

command-line-page: setup ## Write docs/reference/command_line.md: every command and option.
	$(BIN)/nightside command-line -o docs/reference/command_line.md

page-picture: setup setup-tests ## Take the picture of docs/reference/page.md in a real Chromium.
	mkdir -p docs/pictures
	$(BIN)/python -m tests.support.page_picture docs/pictures/page.png $(ARGS)

protos: setup ## Generate the stubs of the .proto files.
	.ci/protos .

lock: ## Pin the dependencies with their hashes; UPGRADE=1 takes the newest versions.
	PYTHON="$(PYTHON)" UPGRADE="$(UPGRADE)" .ci/lock
