"""Compares what gateways decide with what they decided before: the decision digest of every scenario and chaos world.

`python -m tests.digests.run` plays every world named in `recorded.json` and fails if one differs; `--write` records
today's values, which needs a reason in the change log; names or prefixes restrict it to some worlds. `--lines WORLD`
prints the lines of one world instead, to be compared between two versions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from multiprocessing import Pool
from pathlib import Path

from loadgen.simulator import chaos
from loadgen.simulator.checkers import Broken
from loadgen.simulator.decision_digest import DecisionDigest
from loadgen.simulator.scenario import load_scenario
from loadgen.simulator.world import World
from loadgen.studies.sharing import day_price
from loadgen.studies.sharing.day_price import WORKLOADS

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).with_name("recorded.json")
SCENARIOS = ROOT / "loadgen" / "scenarios"
_SECOND_NS = 1_000_000_000
_PLAYED_NS = 90 * _SECOND_NS
"""Virtual time that is played of each run of a scenario."""
_SEEDS = 60
"""Worlds of each flavour of chaos, which are played to their ends."""
FLAVOURS = (
    chaos.ChaosKind.MESH,
    chaos.ChaosKind.CONTROLLER,
    chaos.ChaosKind.PAIR,
    chaos.ChaosKind.DISAGGREGATED,
    chaos.ChaosKind.BREAKING,
    chaos.ChaosKind.POOLS,
)


def worlds() -> Iterator[str]:
    """Names of all worlds: `scenario/run`, and `flavour/seed`."""
    for path in sorted(SCENARIOS.glob("*.yaml")):
        for run in load_scenario(path).runs:
            yield f"{path.stem}/{run.name}"
    for workload in WORKLOADS:
        yield f"priced/{workload}"
    for flavour in FLAVOURS:
        for seed in range(1, _SEEDS + 1):
            yield f"{flavour}/{seed}"


def digest_of(name: str, on_line: Callable[[str], object] | None = None) -> str:
    """Decision digest of one world. A world of chaos is played to its end, with every invariant checked: raises Broken
    where one does not hold."""
    kind, _, which = name.partition("/")
    decisions = DecisionDigest(on_line)
    if kind in FLAVOURS:
        scenario = chaos.chaos_scenario(int(which), chaos.ChaosKind(kind))
        world = World(scenario, scenario.runs[0], every_invariant=True, decisions=decisions)
        digest = decisions.digest(world.play().records)
        world.check_the_end()
        return digest
    if kind == "priced":
        scenario = day_price.scenario(which, "price", 1, is_quick=True)
        run = scenario.runs[0]
    else:
        scenario = load_scenario(SCENARIOS / f"{kind}.yaml")
        run = next(run for run in scenario.runs if run.name == which)
    world = World(scenario, run, decisions=decisions)
    return decisions.digest(world.play(lambda: world.now_ns < _PLAYED_NS).records)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _named(name: str) -> tuple[str, str, bool]:
    """Name of a world, with its digest or what broke in it, and whether nothing did."""
    try:
        return name, digest_of(name), True
    except Broken as broken:
        return name, str(broken), False


def main(arguments: list[str]) -> int:
    """Exit code: 1 where a digest differs from what is recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="Worlds, or beginnings of their names. Default: all.")
    parser.add_argument("--write", action="store_true", help="Record today's values.")
    parser.add_argument("--lines", metavar="WORLD", help="Print the lines of one world.")
    parser.add_argument("--jobs", type=int, default=2, help="Processes.")
    options = parser.parse_args(arguments)
    if options.lines:
        _say(digest_of(options.lines, _say))
        return 0
    recorded: dict[str, str] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    chosen = [name for name in worlds() if not options.names or name.startswith(tuple(options.names))]
    with Pool(options.jobs) as pool:
        told = list(pool.imap_unordered(_named, chosen))
    found = {name: digest for name, digest, _ in told}
    if broken := [f"{name}: {what}" for name, what, is_sound in sorted(told) if not is_sound]:
        _say("\n".join([*broken, f"an invariant broke in {len(broken)} of {len(found)} worlds"]))
        return 1
    if options.write:
        kept = {name: recorded[name] for name in worlds() if name in recorded}
        RECORDED.write_text(json.dumps(dict(sorted((kept | found).items())), indent=1) + "\n")
        _say(f"{len(found)} worlds recorded")
        return 0
    differing = sorted(name for name, digest in found.items() if recorded.get(name) != digest)
    for name in differing:
        _say(f"{name}: {found[name]}, recorded is {recorded.get(name, 'nothing')}")
    _say(f"{len(found)} worlds played, {len(differing)} differ from what is recorded")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
