"""Seeds one defect at a time into a copy of the core and lets the simulator's chaos look for it. Exit code 1 if one
survives.

A checker that has never failed is not yet a checker: here each of them has to.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
CORE = Path("gateway/core")
SEEDS = 400
TIMEOUT_S = 300
PROGRAM = "from loadgen.simulator.main import sim; sim()"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect: what it amounts to, and the text of the core that it changes."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]

    def mutate(self, tree: Path) -> None:
        path = tree / CORE / self.file
        text = path.read_text()
        for old, new in self.changes:
            assert text.count(old) == 1, f"{self.name}: the text to change is in {self.file} {text.count(old)} times"
            text = text.replace(old, new)
        path.write_text(text)


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant; `seed` is None if nothing was found."""

    mutant: Mutant
    seed: int | None
    what: str


MUTANTS = (
    Mutant(
        "replicas in regions that the policy forbids are used",
        "replicas.py",
        (("if served == model and rule.allows(place):", "if served == model:"),),
    ),
    Mutant(
        "a tenant's own rule is ignored",
        "residency.py",
        (("    return own.process\n", "    return policy.process\n"),),
    ),
    Mutant(
        "anybody's overflow is taken in",
        "residency.py",
        (("return Verdict(policy.accept.allows(origin), ", "return Verdict(True, "),),
    ),
    Mutant(
        "a region without a usable policy goes on forwarding",
        "gateway_core.py",
        (("is_open = not self.policy.closed_reason and not self.locked_down", "is_open = not self.locked_down"),),
    ),
    Mutant(
        "forwarding goes on in lockdown",
        "gateway_core.py",
        (
            (
                "is_open = not self.policy.closed_reason and not self.locked_down",
                "is_open = not self.policy.closed_reason",
            ),
        ),
    ),
    Mutant(
        "a gateway that goes out of service takes new requests",
        "gateway_core.py",
        (
            (
                "        if self.draining:\n            return Outcome.REJECTED_DRAINING",
                "        if False:\n            return Outcome.REJECTED_DRAINING",
            ),
        ),
    ),
    Mutant(
        "a peer whose heartbeats change is judged by what it said before",
        "peers.py",
        (
            (
                "            self._note_change(state)\n        state.observation = observation",
                "            pass\n        state.observation = observation",
            ),
        ),
    ),
    Mutant(
        "what goes on from a stored response goes anywhere",
        "placement/placer.py",
        (
            (
                "        if request_class.pinned is not None:\n            return self._place",
                "        if False:\n            return self._place",
            ),
        ),
    ),
    Mutant(
        "a forwarded request may be forwarded again",
        "vocabulary.py",
        (("        return self.cross_region == 0\n\n    def is_within", "        return True\n\n    def is_within"),),
    ),
    Mutant(
        "a late answer from an old attempt counts",
        "gateway_core.py",
        ((" or request.attempt.number != number:", ":"),),
    ),
    Mutant(
        "a stream that broke off is started again",
        "gateway_core.py",
        (("| LegResult.REFUSED if attempt.first_token:", "| LegResult.REFUSED if request.attempts > 9:"),),
    ),
    Mutant(
        "who came last is served first",
        "admission.py",
        (
            (
                "(request.arrival_number, request))\n        self._members",
                "(-request.arrival_number, request))\n        self._members",
            ),
        ),
    ),
    Mutant(
        "a blocked class blocks those behind it",
        "gateway_core.py",
        (
            (
                "self._record_shadow(request, now_ns)\n                continue",
                "self._record_shadow(request, now_ns)\n                return",
            ),
        ),
    ),
    Mutant(
        "a refused forward is forgotten",
        "gateway_core.py",
        (
            (
                "            self._avoid(request, attempt)\n        self._wait_again(request, now_ns)",
                "            self._avoid(request, attempt)",
            ),
        ),
    ),
    Mutant(
        "those who wait have no deadline",
        "gateway_core.py",
        (
            (
                "            self._timers.set(request.timer, request.next_deadline_ns)",
                "            pass",
            ),
        ),
    ),
    Mutant(
        "a cancelled attempt is counted for ever",
        "targets.py",
        (
            (
                "        state.in_flight -= 1\n",
                "        state.in_flight -= result is not LegResult.CANCELLED\n",
            ),
        ),
    ),
    Mutant(
        "a client's mistakes open the breaker",
        "attempts.py",
        (
            ("{LegResult.COMPLETED, LegResult.CLIENT_ERROR}", "{LegResult.COMPLETED}"),
            ("if result is LegResult.FAILED:", "if result in (LegResult.FAILED, LegResult.CLIENT_ERROR):"),
        ),
    ),
    Mutant(
        "a replica with a pending request is pushed to",
        "replicas.py",
        (("if state.waiting > 0:", "if state.waiting > 1:"),),
    ),
    Mutant(
        "peers that have not been heard for long are used",
        "peers.py",
        (("max(3 * keep_alive_ns, ", "max(300 * keep_alive_ns, "),),
    ),
)


def hunt(mutant: Mutant | None, seeds: int = SEEDS) -> Fate:
    """Play chaos on a copy of the tree, mutated if told so, until something is found."""
    with tempfile.TemporaryDirectory(prefix="nightside-mutant-") as folder:
        tree = Path(folder)
        for package in ("gateway", "loadgen"):
            shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            mutant.mutate(tree)
        arguments = ["--chaos", "--first", "--json", "--jobs", "1", "--seed", "1", "--runs", str(seeds)]
        command = [sys.executable, "-c", PROGRAM, *arguments]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode in (0, 1), done.stderr
    return _fate_of(mutant or Mutant("none", "", ()), json.loads(done.stdout)["findings"])


def _fate_of(mutant: Mutant, findings: Sequence[dict[str, object]]) -> Fate:
    if not findings:
        return Fate(mutant, None, "")
    return Fate(mutant, int(str(findings[0]["seed"])), str(findings[0]["what"]))


def main() -> int:
    """Every mutant in turn, as a table."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        fates = list(pool.map(hunt, MUTANTS))
    table = Table("defect", "caught by", "at seed", title=f"{len(MUTANTS)} mutants, up to {SEEDS} seeds each")
    for fate in fates:
        table.add_row(fate.mutant.name, fate.what or "nobody", "–" if fate.seed is None else str(fate.seed))
    Console().print(table)
    return int(any(fate.seed is None for fate in fates))


if __name__ == "__main__":
    sys.exit(main())
