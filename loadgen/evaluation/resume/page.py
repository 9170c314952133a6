"""The page of what clients see of engines that die. Every figure comes from elsewhere; no broken stream is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import quantiles

from loadgen.evaluation.resume.playing import CLIENTS, DOWN_S, ENGINES, KILL_EVERY_S, TOKENS, Outcome
from loadgen.pages.markdown import NOTHING, table

_P99 = 98
_P50 = 49


def page_of(outcomes: Sequence[Outcome], machine: Mapping[str, object]) -> str:
    return "\n".join([_head(machine), _table(outcomes), _PAUSE, _pauses(outcomes), _EXACT])


def _head(machine: Mapping[str, object]) -> str:
    return f"""# When an answer breaks

Written by `make results-resume`; do not edit. Gateways and emulated engines as processes on one machine:
{machine["cpu"]}, {machine["cores"]} cores, {machine["memory_gib"]} GiB, {machine["python"]}; {machine["busy"]}.

*An engine*: one region, {ENGINES} engines, {CLIENTS} clients that ask for {TOKENS} tokens again and again, as streams;
every {KILL_EVERY_S:.0f} seconds one engine is killed (SIGKILL), and started again {DOWN_S} s later. *A region*: clients
ask where there is no engine, all of it is forwarded to two other regions, and one of them dies, its gateway and its
engines at once. What each engine says can be foretold: *whole* means that a client got every token of it, once.
"""


def _table(outcomes: Sequence[Outcome]) -> str:
    head = ("what dies", "resume", "kills", "streams", "held by it", "whole", "broken", "went on", "tokens read again")
    rows = [
        (
            each.case,
            "on" if each.is_resumed else "off",
            str(each.kills),
            str(len(each.seen)),
            str(each.held),
            str(sum(seen.is_whole for seen in each.seen)),
            str(sum(seen.is_broken for seen in each.seen)),
            str(sum(seen.went_on for seen in each.seen)),
            f"{each.tokens_read_again:.0f}" if each.is_resumed else NOTHING,
        )
        for each in outcomes
    ]
    return table(head, rows)


_PAUSE = """*Held by it*: streams at what was killed, as it told itself the moment before. *Broken*: begun, and ended
with an error. The aim is none of those that are sound, which all are here.

The pause: the longest time between two pieces of a stream that went on, beside that of streams that did not, and the
time to a first token then.
"""


def _pauses(outcomes: Sequence[Outcome]) -> str:
    head = ("what dies", "pause p50", "pause p99", "longest gap of others p50", "p99", "first token p50", "p99")
    rows = []
    for each in outcomes:
        if each.is_resumed:
            went = [seen.longest_gap_s for seen in each.seen if seen.went_on]
            others = [seen.longest_gap_s for seen in each.seen if seen.is_whole and not seen.went_on]
            first = [seen.first_token_s for seen in each.seen if seen.first_token_s is not None]
            rows.append((each.case, *_two(went), *_two(others), *_two(first)))
    return table(head, rows)


def _two(values: Sequence[float]) -> tuple[str, str]:
    if len(values) < 2:
        return NOTHING, NOTHING
    cuts = quantiles(values, n=100, method="inclusive")
    return f"{1000 * cuts[_P50]:.0f} ms", f"{1000 * cuts[_P99]:.0f} ms"


_EXACT = """How exactly real engines go on is measured by `tests/engines/test_resume.py` (`make test-engines`), which
prints what share of greedy answers that were broken at random tokens is equal to the unbroken ones; what it was is in
[resume.md](../resume.md#how-exact-it-is).
"""
