"""Page of the duration of a leader change. It shows the measurements, and says whether the aim is met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from loadgen.studies.succession.playing import Succession

AIM_S = 10.0
_HOUR_S = 3600


def page_of(successions: Sequence[Succession], machine: Mapping[str, object]) -> str:
    rows = [_row(each) for each in successions]
    calls = [_calls(each) for each in successions]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['python']}"
    return f"""# When the controller that leads dies

Written by `make results NAME=succession`; do not edit. Two controllers as processes on one machine, on the store that
the first column names ({where};
{machine["busy"]}). The one that leads is killed (`kill -9`), the other one follows.
Until then nothing that a mesh does waits for it: gateways serve by what they were told last.

| store | lease | times | the next one leads | its first order is in the store | aim: at most {AIM_S:g} s |
|---|---|---|---|---|---|
{chr(10).join(rows)}

From the kill; medians, and the lowest and highest in brackets. The first order was asked for fifty times a second
until somebody took it. It is the lease, counted from the last renewal that the other one saw, and a look.

| store | calls an hour of the one that leads, at rest | of the one that stands by |
|---|---|---|
{chr(10).join(calls)}

By the intervals of `store.renew_interval` and `store.look_interval`; each write is one call more (in DynamoDB one, and
one for each 25 items that changed).
"""


def _row(found: Succession) -> str:
    led, written = ([getattr(each, name) for each in found.changes] for name in ("led_s", "written_s"))
    verdict = "met" if max(written) <= AIM_S else "**missed**"
    times = len(found.changes)
    return f"| {found.store} | {found.lease_s:g} s | {times} | {_spread(led)} | {_spread(written)} | {verdict} |"


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


def _calls(found: Succession) -> str:
    renewals, looks = (_HOUR_S / each for each in (found.renew_interval_s, found.look_interval_s))
    return f"| {found.store} | {renewals:.0f} | {looks:.0f} |"
