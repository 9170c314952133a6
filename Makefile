# Everything is built, run and checked from here. `make help` lists the targets.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup setup-tests demo test fuzz test-engines test-cloud test-clients test-issuers compiled test-compiled check check-deploy bench relays bench-relay bench-scale agreement digests mutants soak nightly results-skywalker results-placement results-live results-failover results-balanceroute results-token-budget results-token-budget-live results-eldr results-resume results-sharing results-records results-token-budget-classifier results-succession page-picture metrics-page log-events-page errors-page protos lock clean

help: ## List these targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do printf '  %-17s %s\n' "$$name" "$$text"; done

setup: $(READY) ## Create .venv with the pinned dependencies and the command .venv/bin/nightside. PYTHON=… picks the interpreter.

$(READY): requirements-dev.lock pyproject.toml
	@PYTHON="$(PYTHON)" .ci/setup
	@touch $@

setup-tests: ## Make sure that what the tests start is on this machine: programs, and in .venv-cloud emulators of AWS.
	@.ci/setup-tests
	@PYTHON="$(PYTHON)" .ci/setup-cloud || [ $$? = 69 ]

demo: setup ## Run three regions on this machine and show what forwarding gains. SERVE=1 keeps them up, KILL=region kills its gateway, FLEET=large takes one large engine a region in place of four, DISAGGREGATED=1 lets Europe's engines share their work, ENGINE=llamacpp takes two regions with real engines that write real text.
	$(if $(ENGINE),@PYTHON="$(PYTHON)" .ci/setup-engines $(ENGINE))
	$(BIN)/nightside demo $(if $(SERVE),--serve) $(if $(KILL),--kill $(KILL)) $(if $(FLEET),--fleet $(FLEET)) $(if $(DISAGGREGATED),--disaggregated) $(if $(ENGINE),--$(ENGINE) .venv-$(ENGINE)/bin/python)

test: setup setup-tests ## Run every test on emulated engines. ARGS=… goes to pytest.
	$(BIN)/python -m pytest -n 3 --dist worksteal --session-timeout=3000 $(ARGS)

fuzz: setup ## Give each reader of strangers' bytes 20,000 mutations of its seeds rather than 150. EXAMPLES=… is another number, ARGS=-k… one reader.
	nice $(BIN)/python -m pytest tests/fuzz -n 0 --timeout=0 --hypothesis-profile=exploring --fuzz-examples=$(or $(EXAMPLES),20000) $(ARGS)

test-engines: setup ## Run the tests on real engines, vLLM and llama.cpp on the CPU. Skipped, with the reason, where they cannot be had; REQUIRE=1 fails then.
	@for engine in vllm vllm-oracle llamacpp; do PYTHON="$(PYTHON)" .ci/setup-engines $$engine || [ $$? = 69 ] || exit 1; done
	nice $(BIN)/python -m pytest tests/engines $(if $(REQUIRE),--require-engines) $(ARGS)

test-cloud: setup setup-tests ## Run the tests of cloud providers and stores against real name servers, databases and emulators of AWS. What needs something that is not here is skipped, with the reason; REQUIRE=1 fails then.
	nice $(BIN)/python -m pytest tests/cloud -n 2 --dist loadfile $(if $(REQUIRE),--require-cloud) $(ARGS)

test-clients: setup ## Run clients for JavaScript against a gateway: OpenAI's and Anthropic's SDKs under Node, and a page in a real Chromium. What cannot be had is skipped, with the reason; REQUIRE=1 fails then.
	@.ci/setup-clients || [ $$? = 69 ]
	nice $(BIN)/python -m pytest tests/clients $(if $(REQUIRE),--require-clients) $(ARGS)

test-issuers: setup ## Run a certified OpenID provider (npm's oidc-provider, under Node) as the issuer of clients' and operators' tokens. What cannot be had is skipped, with the reason; REQUIRE=1 fails then.
	@.ci/setup-issuers || [ $$? = 69 ]
	nice $(BIN)/python -m pytest tests/issuers $(if $(REQUIRE),--require-issuers) $(ARGS)

compiled: setup ## Make build/compiled: the same sources with the core's logic compiled by mypyc. Needs a C compiler.
	@.ci/compile

test-compiled: compiled ## Run the tests of the core, the simulator and the HTTP edge on the compiled core, and compare a day's digest.
	@.ci/test-compiled

check: setup ## Lint, format, types, layers, and the protobuf files and their stubs.
	@.ci/check

check-deploy: setup setup-tests ## Check what deploys Nightside, without a cloud: Terraform, images, chart, units. Nothing of it is skipped. ARGS=… goes to pytest.
	@PYTHON="$(PYTHON)" .ci/setup-deploy
	@PYTHON="$(PYTHON)" .ci/setup-kubernetes
	@.ci/setup-tests .ci/deploy-programs
	nice $(BIN)/python -m pytest tests/deploy -n 2 --dist loadfile --timeout=900 $(ARGS)

bench: setup ## Measure the parts that every request passes through.
	$(BIN)/nightside bench

relays: ## Install the relays that ours is measured beside, in an environment of their own.
	@PYTHON="$(PYTHON)" .ci/setup-relays

bench-relay: compiled relays ## Measure a whole gateway beside Envoy and other routers, and write docs/results/relay.md. ARGS=… such as --quick.
	cd build/compiled && ../../$(BIN)/python -m nightside bench relay --rivals ../../.venv-relay -o ../../docs/results/relay.md $(ARGS)

bench-scale: compiled ## Measure the simulator on fleets of up to 100 regions of 1,000 replicas, and write docs/results/scale.json. Takes twelve minutes.
	cd build/compiled && ../../$(BIN)/python -m nightside bench scale -o ../../docs/results/scale.json $(ARGS)

agreement: setup ## Compare live regions on this machine with the simulator, and write docs/results/agreement.json. Takes six minutes and wants the machine for itself.
	$(BIN)/nightside agreement -o docs/results/agreement.json

digests: setup ## Compare what gateways decide in 400 simulated worlds with what is recorded in tests/digests. ARGS=--write records it anew.
	$(BIN)/python -m tests.digests.run $(ARGS)

mutants: setup ## Seed defects into the core, one at a time, and see that chaos, or a test of what it cannot reach, finds each.
	$(BIN)/python -m tests.mutants.run

soak: setup ## Send an hour's worth of a region's requests in minutes, with faults mixed in: nothing may grow.
	$(BIN)/python -m pytest tests/integration/faults/test_soak.py -s --soak-requests 18000

nightly: test digests fuzz test-engines test-cloud test-clients test-issuers bench mutants soak ## Every check that takes long: all tests, properties on new examples each time, real engines, clients in a browser, a real issuer of tokens, benches, mutants, soak, 10,000 seeds of chaos, 1,000 with a controller, with two, with disaggregated pools and with answers that break, the compiled core.
	nice $(BIN)/python -m pytest tests/property --hypothesis-profile=exploring
	$(BIN)/nightside sim --chaos --runs 10000 --seed 1000
	$(BIN)/nightside sim --chaos --controller --runs 1000 --seed 1000
	$(BIN)/nightside sim --chaos --disaggregated --runs 1000 --seed 1000
	$(BIN)/nightside sim --chaos --breaking --runs 1000 --seed 1000
	$(BIN)/nightside sim --chaos --controller --pair --runs 1000 --seed 1000
	@.ci/compile && .ci/test-compiled || [ $$? = 69 ]

results-skywalker: setup ## Write docs/results/skywalker.md. TRACES=dir holds recorded traces, FULL=1 takes hours; it resumes. A page that is there is replaced.
	nice $(BIN)/nightside results skywalker $(if $(TRACES),--traces $(TRACES)) $(if $(FULL),--full)

results-placement: setup ## Write docs/results/placement.md: our default placement beside others' on every workload and load. TRACES=dir holds recorded traces, FULL=1 plays five seeds throughout; it resumes.
	nice $(BIN)/nightside results placement $(if $(TRACES),--traces $(TRACES)) $(if $(FULL),--full)

results-live: setup relays ## Write docs/results/placement_live.md: our mesh live beside other routers on emulated engines. TRACES=dir holds recorded agents, REAL=1 plays two real llama.cpp as well. Takes twelve minutes.
	$(if $(REAL),.ci/setup-engines llamacpp)
	$(BIN)/nightside results live $(if $(TRACES),--traces $(TRACES)) $(if $(REAL),--real .venv-llamacpp/bin/python) $(ARGS)

results-failover: setup ## Write docs/results/failover.md: what clients see when gateways die, live on this machine. Takes ten minutes. ARGS=… such as --rounds 1.
	$(BIN)/nightside results failover $(ARGS)

results-balanceroute: setup ## Write docs/results/balanceroute.md: the decode tier beside BalanceRoute's tables, in virtual time. TRACES=dir holds recorded traces; it resumes. ARGS=… such as --look.
	nice $(BIN)/nightside results balanceroute $(if $(TRACES),--traces $(TRACES)) $(ARGS)

results-token-budget: setup ## Write docs/results/token-budget.md: pools by length beside the token-budget paper, in virtual time. TRACES=dir holds recorded traces; it resumes. ARGS=… such as --json.
	nice $(BIN)/nightside results token-budget $(if $(TRACES),--traces $(TRACES)) $(ARGS)

results-token-budget-live: setup ## Write docs/results/token-budget-live.md: a burst of long prompts beside short chat, live on this machine. Takes four minutes. ARGS=… such as --rounds 1.
	$(BIN)/nightside results token-budget-live $(ARGS)

results-eldr: compiled ## Write docs/results/eldr.md: expert locality beside ELDR's figures, in virtual time. TRACES=dir holds recorded routing. Takes some minutes of two cores, and wants the machine for itself at the end.
	cd build/compiled && nice ../../$(BIN)/python -m nightside results eldr -o ../../docs/results $(if $(TRACES),--traces $(abspath $(TRACES))) $(ARGS)

results-resume: setup ## Write docs/results/resume.md: what clients see of engines, and of a region, that die in the middle of their answers. Takes three minutes. ARGS=… such as --seconds 10.
	$(BIN)/nightside results resume $(ARGS)

results-sharing: setup ## Write docs/results/sharing.md: how the fleet is shared, between tenants and classes, and by cost. Takes minutes. ARGS=… such as --quick, --only noisy_neighbour.
	$(BIN)/nightside results sharing $(ARGS)

results-records: setup setup-tests ## Write docs/results/failover_records.md: how soon a death is told by each provider of records, on what is started here. Takes three minutes. ARGS=… such as --rounds 1.
	$(BIN)/python -m tests.cloud.measure_records -o docs/results/failover_records.md $(ARGS)

results-token-budget-classifier: setup ## Write docs/results/token-budget-classifier.md: what texts are taken for, and how soon their tokens are known. Fetches texts and tokenizers; takes five minutes.
	loadgen/evaluation/prompts/gather.sh build/prompts
	nice $(BIN)/nightside results token-budget-classifier build/prompts/documents.jsonl $(ARGS)

results-succession: setup ## Write docs/results/succession.md: how soon another controller leads. STORES="a.yaml b.yaml" are controllers' files, each with a store that is shared.
	$(BIN)/nightside results succession $(STORES) $(ARGS)

page-picture: setup setup-tests ## Take the picture of the page in docs/page.md: the demo's three regions under load, in a real Chromium.
	mkdir -p docs/pictures
	$(BIN)/python -m tests.support.page_picture docs/pictures/page.png $(ARGS)

metrics-page: setup ## Write docs/metrics.md: every series of a gateway, and the alerts on it.
	$(BIN)/nightside gateway metrics --rules deploy/prometheus/nightside.rules.yaml -o docs/metrics.md

log-events-page: setup ## Write docs/reference/log_events.md: every log event of gateways and controllers, and what to do about each.
	$(BIN)/nightside controller log-events -o docs/reference/log_events.md

errors-page: setup ## Write docs/reference/errors.md: every error that clients may receive, and what to do about each.
	$(BIN)/nightside gateway errors -o docs/reference/errors.md

protos: setup ## Generate the stubs of the .proto files again.
	.ci/protos .

lock: ## Pin the dependencies of pyproject.toml with their hashes. UPGRADE=1 takes the newest versions.
	PYTHON="$(PYTHON)" UPGRADE="$(UPGRADE)" .ci/lock

clean: ## Remove the environment, the caches and everything built.
	rm -rf .venv .venv-cloud .venv-deploy .venv-engines .venv-engines-oracle .venv-kubernetes .venv-llamacpp .venv-relay .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist out *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
