"""Builds the package. With NIGHTSIDE_COMPILE=1 mypyc compiles what every request passes through; otherwise all is plain
Python.

Nothing else depends on which of the two it is: see docs/decisions/0004-a-compiled-core.md.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

COMPILED = (
    "controller/driver.py",
    "gateway/core/features/adoption.py",
    "gateway/core/features/cache_digests/changes.py",
    "gateway/core/features/cache_digests/feature.py",
    "gateway/core/features/cache_digests/fingerprints.py",
    "gateway/core/features/cache_digests/holdings.py",
    "gateway/core/features/cache_digests/telling.py",
    "gateway/core/features/cache_digests/told.py",
    "gateway/core/features/catalogue.py",
    "gateway/core/features/classes/feature.py",
    "gateway/core/features/classes/interruptions.py",
    "gateway/core/features/disaggregated/balance_route.py",
    "gateway/core/features/disaggregated/board.py",
    "gateway/core/features/disaggregated/books.py",
    "gateway/core/features/disaggregated/catalogue.py",
    "gateway/core/features/disaggregated/feature.py",
    "gateway/core/features/disaggregated/join_shortest_queue.py",
    "gateway/core/features/disaggregated/least_kv_tokens.py",
    "gateway/core/features/disaggregated/policy.py",
    "gateway/core/features/disaggregated/pool.py",
    "gateway/core/features/disaggregated/power_of_two.py",
    "gateway/core/features/disaggregated/predictor.py",
    "gateway/core/features/disaggregated/predictors/estimator.py",
    "gateway/core/features/disaggregated/predictors/exact_match.py",
    "gateway/core/features/disaggregated/predictors/fitted.py",
    "gateway/core/features/disaggregated/predictors/forest.py",
    "gateway/core/features/disaggregated/predictors/history.py",
    "gateway/core/features/disaggregated/predictors/learned.py",
    "gateway/core/features/disaggregated/predictors/recent.py",
    "gateway/core/features/disaggregated/predictors/survival.py",
    "gateway/core/features/disaggregated/projection.py",
    "gateway/core/features/disaggregated/random_choice.py",
    "gateway/core/features/disaggregated/round_robin.py",
    "gateway/core/features/disaggregated/score.py",
    "gateway/core/features/disaggregated/seats.py",
    "gateway/core/features/disaggregated/subset.py",
    "gateway/core/features/disaggregated/tier.py",
    "gateway/core/features/expert_locality/balance_local.py",
    "gateway/core/features/expert_locality/catalogue.py",
    "gateway/core/features/expert_locality/eldr.py",
    "gateway/core/features/expert_locality/feature.py",
    "gateway/core/features/kv_events/engine_cache.py",
    "gateway/core/features/kv_events/feature.py",
    "gateway/core/features/kv_events/tie.py",
    "gateway/core/features/leaving/feature.py",
    "gateway/core/features/lengths/feature.py",
    "gateway/core/features/lengths/ladders.py",
    "gateway/core/features/lengths/threshold.py",
    "gateway/core/features/lengths/token_budget.py",
    "gateway/core/features/lengths/tuning.py",
    "gateway/core/features/limits/feature.py",
    "gateway/core/features/limits/shares.py",
    "gateway/core/features/limits/tenant_meter.py",
    "gateway/core/features/limits/token_bucket.py",
    "gateway/core/features/lockdown/feature.py",
    "gateway/core/features/prices/feature.py",
    "gateway/core/features/prices/in_force.py",
    "gateway/core/features/prices/policy.py",
    "gateway/core/features/prices/price_table.py",
    "gateway/core/features/resume/feature.py",
    "gateway/core/features/scaling/demand.py",
    "gateway/core/features/scaling/flows.py",
    "gateway/core/features/scaling/planner.py",
    "gateway/core/features/scaling/sampling.py",
    "gateway/core/features/scaling/scaler.py",
    "gateway/core/features/scaling/steady.py",
    "gateway/core/features/shadow.py",
    "gateway/core/features/sharing/fair_queue.py",
    "gateway/core/features/sharing/fair_shares.py",
    "gateway/core/features/sharing/feature.py",
    "gateway/core/features/stored_responses/feature.py",
    "gateway/core/gateway_core.py",
    "gateway/core/kernel/admission.py",
    "gateway/core/kernel/attempts.py",
    "gateway/core/kernel/bits.py",
    "gateway/core/kernel/deadlines.py",
    "gateway/core/kernel/drain_rates.py",
    "gateway/core/kernel/feasibility.py",
    "gateway/core/kernel/feature.py",
    "gateway/core/kernel/forwarding.py",
    "gateway/core/kernel/goodput.py",
    "gateway/core/kernel/kernel.py",
    "gateway/core/kernel/legs.py",
    "gateway/core/kernel/peers.py",
    "gateway/core/kernel/placing.py",
    "gateway/core/kernel/pools.py",
    "gateway/core/kernel/publishing.py",
    "gateway/core/kernel/queues.py",
    "gateway/core/kernel/reevaluation.py",
    "gateway/core/kernel/replica_groups.py",
    "gateway/core/kernel/replicas.py",
    "gateway/core/kernel/request_class.py",
    "gateway/core/kernel/requests.py",
    "gateway/core/kernel/retries.py",
    "gateway/core/kernel/rooms.py",
    "gateway/core/kernel/slots.py",
    "gateway/core/kernel/spare_capacity.py",
    "gateway/core/kernel/state.py",
    "gateway/core/kernel/targets.py",
    "gateway/core/kernel/timers.py",
    "gateway/core/kernel/waiting_requests.py",
    "gateway/core/placement/affinity_load.py",
    "gateway/core/placement/cache_aware.py",
    "gateway/core/placement/caches.py",
    "gateway/core/placement/catalogue.py",
    "gateway/core/placement/consistent_hash.py",
    "gateway/core/placement/cost.py",
    "gateway/core/placement/eligibility.py",
    "gateway/core/placement/first_token.py",
    "gateway/core/placement/fleet.py",
    "gateway/core/placement/hash_ring.py",
    "gateway/core/placement/holds.py",
    "gateway/core/placement/index_nodes.py",
    "gateway/core/placement/index_sizes.py",
    "gateway/core/placement/layered.py",
    "gateway/core/placement/least_load.py",
    "gateway/core/placement/lmetric.py",
    "gateway/core/placement/nearest_region.py",
    "gateway/core/placement/placer.py",
    "gateway/core/placement/policy.py",
    "gateway/core/placement/power_of_two.py",
    "gateway/core/placement/prefix.py",
    "gateway/core/placement/prefix_chain.py",
    "gateway/core/placement/prefix_index.py",
    "gateway/core/placement/random_choice.py",
    "gateway/core/placement/round_robin.py",
    "gateway/core/placement/session_sticky.py",
    "gateway/core/response_key.py",
    "gateway/door/api.py",
    "gateway/door/body_memory.py",
    "gateway/door/call.py",
    "gateway/door/client_access.py",
    "gateway/door/limits.py",
    "gateway/door/parse.py",
    "gateway/engines/client.py",
    "gateway/features/resume/continuation.py",
    "gateway/features/resume/metrics.py",
    "gateway/features/resume/transcript.py",
    "gateway/http1/client.py",
    "gateway/http1/local.py",
    "gateway/http1/server.py",
    "gateway/records/finished.py",
    "gateway/records/logs.py",
    "gateway/records/metrics.py",
    "gateway/records/model_labels.py",
    "gateway/records/tenant_labels.py",
    "gateway/records/usage_book.py",
    "gateway/records/usage_metrics.py",
    "gateway/request/answer.py",
    "gateway/request/answer_bodies.py",
    "gateway/request/answers.py",
    "gateway/request/cache_salts.py",
    "gateway/request/driver.py",
    "gateway/request/engine_errors.py",
    "gateway/request/event_scanner.py",
    "gateway/request/header_values.py",
    "gateway/request/leg_answer.py",
    "gateway/request/model_names.py",
    "gateway/request/parts.py",
    "gateway/request/port.py",
    "gateway/request/proxied.py",
    "gateway/request/sse.py",
    "gateway/request/usage.py",
    "gateway/security/keyring.py",
    "loadgen/engine/barrier.py",
    "loadgen/engine/blocks.py",
    "loadgen/engine/decode_group.py",
    "loadgen/engine/envelope.py",
    "loadgen/engine/experts.py",
    "loadgen/engine/iteration_cost.py",
    "loadgen/engine/leases.py",
    "loadgen/engine/model.py",
    "loadgen/engine/ranks.py",
    "loadgen/engine/sequences.py",
    "loadgen/simulator/agenda.py",
    "loadgen/simulator/chronicle.py",
    "loadgen/simulator/clients.py",
    "loadgen/simulator/decode_workers.py",
    "loadgen/simulator/engines.py",
    "loadgen/simulator/gateways.py",
    "loadgen/simulator/heartbeats.py",
    "loadgen/simulator/network.py",
    "loadgen/simulator/probes.py",
    "loadgen/simulator/prompts.py",
    "loadgen/simulator/requests.py",
    "mesh/pump.py",
    "mesh/series.py",
)
"""Modules that compute, on the path of a request and in the simulator. Compiling modules that only hold values gains
nothing, and a class that is decoded by its annotations must not be: compiled ones are simplified."""


def extensions() -> list[Extension]:
    if os.environ.get("NIGHTSIDE_COMPILE") != "1":  # noqa: TID251 - what a build is told, it is told here
        return []
    from mypyc.build import mypycify  # noqa: PLC0415 - nobody else needs a compiler

    return mypycify(list(COMPILED), opt_level="2", debug_level="0", group_name="nightside", multi_file=True)


class BuildInParallel(build_ext):
    """Compiles the C files of one extension on all cores."""

    def build_extensions(self) -> None:
        compile_all = self.compiler.compile

        def compile_each(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [
                    path for paths in pool.map(lambda each: compile_all([each], **options), sources) for path in paths
                ]

        self.compiler.compile = compile_each
        super().build_extensions()


class BuildWithPolicies(build_py):
    """Puts the residency files of `policies/` beside the module that hands them out."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            files = sorted(Path("policies").glob("*.yaml"))
            assert files, "policies/ is missing beside setup.py"
            samples = Path(self.build_lib, "gateway/policy/samples")
            samples.mkdir(parents=True, exist_ok=True)
            for file in files:
                shutil.copy(file, samples)


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildInParallel, "build_py": BuildWithPolicies})
