"""Turns a scenario into a live run's plan: the endpoints and keys of its users. Simulation-only parts are listed.

It sends nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from ssl import SSLContext
from typing import Any
from urllib.parse import urlsplit

from gateway.core.vocabulary import RegionName
from loadgen.live_client import EndpointDialect
from loadgen.live_runner import ClosedLoop, LiveClientGroup, LoadPlan, OpenLoop
from loadgen.simulator.scenario import ArrivalsSection, ClientsSection, Scenario
from loadgen.workload import Program, Recorded, Workload, arrivals
from mesh.faults import ConfigError
from mesh.yaml_file import read_yaml

_SECOND_NS = 1_000_000_000
_ALL_CLIENTS = "*"
HERE = "here"
"""Region of clients for which the scenario names none."""

Urls = Mapping[RegionName, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Keys:
    """API keys by owner: `REGION/TENANT`, `REGION`, or `*` for all other clients."""

    by_owner: Mapping[str, str] = field(default_factory=dict)

    def of(self, region: str, tenant: str) -> str | None:
        owners = (f"{region}/{tenant}", region, _ALL_CLIENTS)
        return next((self.by_owner[owner] for owner in owners if owner in self.by_owner), None)


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """Settings of a live run that a simulated one does not have."""

    in_flight_max: int
    tls: SSLContext | None = None


def urls_by_region(given: Sequence[str], scenario: Scenario) -> dict[RegionName, tuple[str, ...]]:
    """Endpoints per region, from `REGION=URL`, or `URL` for every region without one of its own. Raises ConfigError."""
    asking = list(dict.fromkeys(clients.region for clients in scenario.clients))
    found: dict[str, list[str]] = {region: [] for region in asking}
    for_all: list[str] = []
    for text in given:
        region, url = _region_and_url(text)
        if region is None:
            for_all.append(url)
        elif region in found:
            found[region].append(url)
        else:
            raise ConfigError(f"--url {text}: no clients are in {region!r}; they are in {', '.join(asking)}")
    if missing := [region for region, urls in found.items() if not urls and not for_all]:
        raise ConfigError(f"--url: where do the clients of {', '.join(missing)} send? Give --url {missing[0]}=URL")
    return {RegionName(region): tuple(urls or for_all) for region, urls in found.items()}


def _region_and_url(text: str) -> tuple[str | None, str]:
    before, separator, after = text.partition("=")
    has_region = bool(separator) and "://" not in before
    url = after if has_region else text
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--url {text}: {url!r} is no http:// or https:// URL")
    if parts.query or parts.fragment:
        raise ConfigError(f"--url {text}: an endpoint's URL has no query and no fragment")
    return (before if has_region else None), url.rstrip("/").removesuffix("/v1")


def read_keys(given: Sequence[str], file: Path | None, scenario: Scenario) -> Keys:
    """Read keys from `OWNER=KEY` and from a YAML file of `OWNER: KEY`. No error message repeats a key. Raises
    ConfigError."""
    by_owner: dict[str, str] = {}
    for owner, key in (read_yaml(file).mapping() if file else {}).items():
        if not isinstance(key, str):
            raise ConfigError(f"{file}: {owner}: should be a key in quotes")
        by_owner[str(owner)] = key
    for text in given:
        owner, separator, key = text.partition("=")
        if not separator:
            raise ConfigError("--key: should be OWNER=KEY, where OWNER is REGION, REGION/TENANT or *")
        by_owner[owner] = key
    known = [_ALL_CLIENTS, *dict.fromkeys(clients.region for clients in scenario.clients)]
    for owner, key in by_owner.items():
        if owner.partition("/")[0] not in known:
            raise ConfigError(f"keys: the owner of one is none of {', '.join(known)}, or REGION/TENANT")
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError(f"keys: that of {owner} is empty, or has characters that no header can carry")
    return Keys(by_owner)


def plan_of(scenario: Scenario, urls: Urls, keys: Keys, dialect: EndpointDialect, limits: LiveLimits) -> LoadPlan:
    """Plan of the run. Raises ConfigError if the users of a closed loop alone exceed the limit of requests in
    flight."""
    users = sum(clients.clients or 0 for clients in scenario.clients)
    if users > limits.in_flight_max:
        raise ConfigError(f"--connections-max: {limits.in_flight_max} is less than the scenario's {users} clients")
    return LoadPlan(
        groups=tuple(_group(scenario, number, urls, keys) for number in range(len(scenario.clients))),
        dialect=dialect,
        load_s=scenario.duration / _SECOND_NS,
        drain_s=scenario.drain / _SECOND_NS,
        request_timeout_s=scenario.request_deadline / _SECOND_NS,
        pause_after_failure_s=scenario.pause_after_failure / _SECOND_NS,
        in_flight_max=limits.in_flight_max,
        sample_s=scenario.sample / _SECOND_NS,
        seed=scenario.seed,
        tls=limits.tls,
    )


def _group(scenario: Scenario, number: int, urls: Urls, keys: Keys) -> LiveClientGroup:
    section = scenario.clients[number]
    region = RegionName(section.region)
    return LiveClientGroup(
        region,
        urls[region],
        _load(scenario, number, section),
        lambda tenant: keys.of(section.region, tenant or section.tenant),
        None if section.patience is None else section.patience / _SECOND_NS,
        section.impatient_share,
    )


def _load(scenario: Scenario, number: int, section: ClientsSection) -> ClosedLoop | OpenLoop:
    workload = scenario.workload_of(number)
    if section.clients is not None:
        return ClosedLoop(workload, section.clients)
    if section.arrivals is None:
        assert isinstance(workload, Recorded), "without a rate, the workload knows when"
        return OpenLoop(workload.recorded())
    rng = random.Random(f"{scenario.seed}/clients {number}")
    return OpenLoop(_schedule(section.region, section.arrivals, workload, rng, scenario.duration / _SECOND_NS))


def _schedule(
    region: str, section: ArrivalsSection, workload: Workload, rng: random.Random, until_s: float
) -> Iterator[tuple[float, Program]]:
    """Arrivals and programs identical to the simulator's for this seed."""
    times = arrivals(section.as_curve(), rng, until_s=until_s, variation=section.variation)
    for number, at_s in enumerate(times):
        yield at_s, next(workload.programs(f"{region}/{number}"))


def without_a_fleet(document: dict[str, Any], path: Path) -> None:
    """Complete a scenario document that leaves out regions, engines and distances, which only simulations need. Faults
    in the document are left for its validation."""
    document.setdefault("name", path.stem)
    clients = document.get("clients")
    asking = [each for each in clients if isinstance(each, dict)] if isinstance(clients, list) else []
    for each in asking:
        each.setdefault("region", HERE)
    names = list(dict.fromkeys(each["region"] for each in asking if isinstance(each["region"], str)))
    if "regions" not in document and names:
        document["regions"] = {name: {"jurisdiction": "-"} for name in names}
        document.setdefault("round_trips", [[a, b, "1ms"] for a, b in combinations(names, 2)])
    document.setdefault("round_trips", [])


def only_simulated(scenario: Scenario) -> list[str]:
    """Parts of a scenario that a live run leaves out, as text."""
    left_out = []
    if scenario.faults:
        left_out.append(f"{len(scenario.faults)} faults")
    if len(scenario.runs) > 1:
        left_out.append(f"{len(scenario.runs)} runs: whatever answers decides, and there is one run")
    return left_out
