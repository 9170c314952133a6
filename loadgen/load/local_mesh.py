"""Runs a scenario's mesh on this machine: engines emulated, gateways as processes, and network delays between them.

A scenario that cannot be run live is refused; it must never play a different one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from gateway.core.vocabulary import ModelName, RegionName
from loadgen.demo.mesh import Mesh, running_mesh
from loadgen.demo.region_files import write_table
from loadgen.demo.scenario import TABLE, DemoScenario, RegionScenario
from loadgen.simulator.scenario import RunSection, Scenario
from mesh.faults import ConfigError

_MILLISECOND_NS = 1_000_000


@asynccontextmanager
async def local_mesh(
    scenario: Scenario, run: RunSection, folder: Path, tasks: asyncio.TaskGroup
) -> AsyncIterator[Mesh]:
    """Run the scenario's mesh. Raises ConfigError for a scenario that cannot be run live; a process that dies fails
    `tasks`."""
    check_live(scenario, run)
    config = run.as_config()
    async with running_mesh(as_demo(scenario, folder), config.placement.overflow, folder, tasks) as mesh:
        yield mesh


def check_live(scenario: Scenario, run: RunSection) -> None:
    """Check that the scenario can be run live. Raises ConfigError."""
    if faults := _faults_of(scenario, run):
        raise ConfigError("\n".join(faults))


def _faults_of(scenario: Scenario, run: RunSection) -> list[str]:
    plain = RunSection.model_validate({"placement": {"overflow": str(run.as_config().placement.overflow)}})
    found = []
    if run.as_config() != plain.as_config():
        found.append(f"run {run.name}: only `overflow` can differ from the defaults on live gateways")
    if scenario.faults:
        found.append("faults: cannot be brought about on live gateways")
    for name, region in scenario.regions.items():
        if region.gateways != 1 or region.adopted or region.preset or not region.replicas:
            found.append(f"regions.{name}: should have one gateway and some replicas like all others")
    return found


def as_demo(scenario: Scenario, folder: Path) -> DemoScenario:
    """Scenario in the demo's form, with policies and round trips written to `folder`. `check_live` rejects scenarios
    without such a form."""
    policies = folder / "policies"
    policies.mkdir(parents=True, exist_ok=True)
    for name in scenario.regions:
        document = scenario.policy_document(name).model_dump(mode="json", exclude_defaults=True)
        document["regions"] = TABLE
        (policies / f"{name}.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    round_trips = folder / "round_trips.csv"
    lines = (
        f"{one},{other},{round_trip_ns / _MILLISECOND_NS:g}"
        for (one, other), round_trip_ns in scenario.round_trips_ns().items()
        if one < other
    )
    round_trips.write_text("\n".join(lines) + "\n")
    regions = tuple(
        RegionScenario(
            scenario.place(name),
            clients=0,
            engines=region.replicas,
            slots=region.slots or scenario.slots or _slots_of(scenario),
            policies=policies,
        )
        for name, region in scenario.regions.items()
    )
    write_table(regions)
    return DemoScenario(
        regions=regions,
        model=ModelName(scenario.model),
        preset=scenario.preset,
        seed=scenario.seed,
        round_trips_file=round_trips,
        has_controller=False,
    )


def _slots_of(scenario: Scenario) -> int:
    return next(engine.sequences_max for owned in scenario.fleet().values() for _, engine in owned)


def urls_of(mesh: Mesh) -> dict[RegionName, tuple[str, ...]]:
    return {region: (url,) for region, url in mesh.gateways.items()}
