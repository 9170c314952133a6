"""Collects and prints a demo's results: the intro, the tables, the comparison, the problems, and all of it as JSON.

It must never call a run good that had a failure in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from rich.console import Console
from rich.text import Text

from gateway.core.kernel.residency import ResidencyPolicy, may_process
from gateway.core.vocabulary import RegionName, TenantName
from gateway.policy.file import load_policy
from loadgen.demo.failover import FailoverReport, failover_document, seen_by_clients, seen_by_the_mesh, why_lost
from loadgen.demo.reading import read_caveats, read_comparison, read_forwarding, residency_breaches
from loadgen.demo.region_files import ZONE, has_addresses_of_its_own
from loadgen.demo.report import RunReport, RunResult, as_document, report_on, table_of
from loadgen.demo.scenario import DemoScenario
from loadgen.report import MachineUse
from loadgen.round_trips import RoundTripTable

MESH_RUN = "mesh"
ALONE_RUN = "alone"
DEATH_RUN = "failover"
NO_ADDRESSES = (
    "This system has no 127.x.y.z addresses besides 127.0.0.1: each gateway has a port of its own there, and clients "
    "are told ports instead of one name."
)
NO_TENANT = TenantName("")
"""Empty tenant: the demo's policies make no difference between tenants."""


@dataclass(slots=True)
class DemoStory:
    """Results, filled while the demo runs and printed when it is over, however it ended."""

    scenario: DemoScenario
    results: list[RunResult] = field(default_factory=list)
    death: FailoverReport | None = None
    failure: str = ""
    is_interrupted: bool = False

    def reports(self) -> list[RunReport]:
        return [report_on(result) for result in self.results]

    def problems(self) -> list[str]:
        """Faults of the demo, in words. An empty list means success."""
        reports = self.reports()
        found = [problem for report in reports for problem in self._problems_of(report)]
        if self.death is not None:
            found += [*self._breaches(report_on(self.death.run)), *self.death.problems()]
        return [self.failure, *found] if self.failure else found

    def _problems_of(self, report: RunReport) -> Iterator[str]:
        for detail, count in report.failures.items():
            yield f"{report.run.name}: {count} × {detail}"
        yield from self._breaches(report)
        forwarded = sum(count for (client, engine), count in report.answered.items() if client != engine)
        if report.run.name == MESH_RUN and not forwarded and not report.run.is_partial:
            yield f"{report.run.name}: nothing was forwarded"
        if report.run.name == ALONE_RUN and forwarded:
            yield f"{report.run.name}: {forwarded} requests were forwarded with forwarding off"

    def _breaches(self, report: RunReport) -> Iterator[str]:
        for breach in residency_breaches(report, _policies(self.scenario), NO_TENANT):
            yield f"{report.run.name}: against the residency policy, {breach}"


def print_intro(console: Console, scenario: DemoScenario, round_trips: RoundTripTable) -> None:
    console.print(Text(_intro(scenario, round_trips)))
    console.print()


def _intro(scenario: DemoScenario, round_trips: RoundTripTable) -> str:
    regions = ", ".join(f"{region.name} ({region.clients})" for region in scenario.regions)
    engines, slots = sum(region.engines for region in scenario.regions), scenario.regions[0].slots
    distances = ", ".join(
        f"{one.name} – {other.name} {round_trips.round_trip_s(one.name, other.name) * 1000:.0f} ms"
        for one, other in combinations(scenario.regions, 2)
    )
    lines = [
        f"{len(scenario.regions)} regions on this machine, each a gateway in its own process; clients: {regions}.",
        f"{engines} emulated engines ({scenario.preset}, {slots} slots each). Round trips: {distances}.",
        *(f"Of those in {name}, {readers} read prompts for the others." for name, readers in _readers(scenario)),
        *(f"By its policy, what arrives in {name} stays there." for name in closed_regions(scenario)),
        f"The same load goes out twice, {scenario.load_s:.0f} s each: {MESH_RUN} forwards overflow to other regions, "
        f"{ALONE_RUN} does not. {_about_death(scenario)}",
    ]
    return "\n".join(lines)


def _readers(scenario: DemoScenario) -> Iterator[tuple[RegionName, int]]:
    return ((region.name, region.prefill_engines) for region in scenario.regions if region.prefill_engines)


def _about_death(scenario: DemoScenario) -> str:
    if not has_addresses_of_its_own():
        return f"{NO_ADDRESSES} So no gateway is killed."
    return (
        f"Then, in {DEATH_RUN}, the gateway of {scenario.killed} is killed halfway, and returns. Clients know one "
        f"name, {ZONE}, which the controller and every gateway answer for."
    )


def _policies(scenario: DemoScenario) -> dict[RegionName, ResidencyPolicy]:
    return {region.name: load_policy(region.policy_file) for region in scenario.regions}


def closed_regions(scenario: DemoScenario) -> list[RegionName]:
    """Regions of the demo that may not forward to any other region."""
    policies = _policies(scenario)
    places = [region.place for region in scenario.regions]
    return [
        name
        for name, policy in policies.items()
        if not any(may_process(policy, NO_TENANT, place).allowed for place in places if place != policy.place)
    ]


def print_story(console: Console, story: DemoStory) -> None:
    reports = story.reports()
    if reports:
        console.print(table_of(reports))
        console.print()
        console.print(Text(_words(reports)))
    if story.death is not None:
        console.print()
        console.print(seen_by_clients(story.death))
        for sentence in why_lost(story.death):
            console.print(Text(sentence))
        if story.death.failover is not None:
            console.print()
            console.print(seen_by_the_mesh(story.death))
        console.print()
    for problem in story.problems():
        console.print(Text(problem, style="bold red"))


def _words(reports: list[RunReport]) -> str:
    comparison = [read_comparison(*reports)] if len(reports) == 2 else []
    forwarding = [read_forwarding(report) for report in reports if report.run.name == MESH_RUN]
    paragraphs = [*comparison, *forwarding, read_caveats(reports), *_cpu_line(reports)]
    return "\n\n".join(filter(None, paragraphs))


def _cpu_line(reports: list[RunReport]) -> Iterator[str]:
    measured = [f"{report.run.name} {_cpu(report.run.machine)}" for report in reports if report.run.machine is not None]
    if measured:
        yield f"CPU of the whole machine in use: {'; '.join(measured)}."


def _cpu(machine: MachineUse) -> str:
    own = "" if machine.own_share is None else f", {machine.own_share:.0%} by the demo itself"
    return f"{machine.mean_share:.0%} (peak {machine.peak_share:.0%}{own})"


def story_document(story: DemoStory) -> dict[str, object]:
    reports = story.reports()
    return {
        "scenario": _scenario_document(story.scenario),
        "runs": [as_document(report) for report in reports],
        "failover": None if story.death is None else failover_document(story.death),
        "reading": _words(reports),
        "interrupted": story.is_interrupted,
        "problems": story.problems(),
    }


def _scenario_document(scenario: DemoScenario) -> dict[str, object]:
    return {
        "regions": [
            {
                "region": region.name,
                "jurisdiction": region.place.jurisdiction,
                "clients": region.clients,
                "engines": region.engines,
            }
            for region in scenario.regions
        ],
        "engine_preset": scenario.preset,
        "engine_slots": scenario.regions[0].slots,
        "load_s": scenario.load_s,
        "seed": scenario.seed,
    }
