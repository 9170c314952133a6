"""Page of what clients see of engines that die. Every figure is measured elsewhere; no broken stream is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import quantiles

from loadgen.pages.markdown import NOTHING, table
from loadgen.studies.numbers import Middle
from loadgen.studies.resume.costs import Cost
from loadgen.studies.resume.playing import CLIENTS, DOWN_S, ENGINES, KILL_EVERY_S, REGION_TOKENS, TOKENS, Outcome
from loadgen.studies.resume.real_engines import Exactness, Killed, Measured

RELAY_CHUNK_US = 33
_P99 = 98
_P50 = 49


def page_of(
    outcomes: Sequence[Outcome],
    costs: tuple[Mapping[str, Middle], Sequence[Cost]],
    measured: Measured,
    machine: Mapping[str, object],
) -> str:
    parts = [_head(machine), _table(outcomes), _PAUSE, _pauses(outcomes)]
    parts += [_REAL, _killed(list(measured.killed.values())), _EXACT, _exactness(list(measured.exactness.values()))]
    added, whole = costs
    parts += [_WHY_NOT, _COST, _added(added), *((_COST_WHOLE, _costs(whole)) if whole else ()), _COST_NOTE]
    return "\n".join(parts)


def _head(machine: Mapping[str, object]) -> str:
    return f"""# When an answer breaks

Written by `make results NAME=resume`; do not edit. Gateways and emulated engines as processes on one machine:
{machine["cpu"]}, {machine["cores"]} cores, {machine["memory_gib"]} GiB, {machine["python"]}; {machine["busy"]}.
Region files have no more in them than they need: every limit is the default.

## What clients see

*An engine*: one region, {ENGINES} engines, {CLIENTS} clients that ask for {TOKENS} tokens again and again, as streams;
every {KILL_EVERY_S:.0f} seconds one engine is killed (SIGKILL), and started again {DOWN_S} s later; the next one's turn
comes when it is up. *A region*: clients ask where there is no engine, for {REGION_TOKENS} tokens each. All of it is
forwarded to another region, which holds every one of the streams at once when it dies, its gateway and its engines
together; a third one has room. What each engine says can be foretold: *whole* means that a client got every token of
it, once.
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


_PAUSE = """*Held by it*: streams that ran in what was killed, as its engines told themselves the moment before; of
engines, all kills together, and some of those ended before the signal. *Broken*: begun, and ended with an error. The
aim is none of those that are sound, which all are here.

The pause: the longest time between two pieces of a stream that went on, beside that of streams that did not, and the
time to a first token then. The aim is a first token's time with a warm prefix, and what it takes to notice, and it is
missed: the prefix is warm nowhere here, and all that died at once comes at once. An engine gets more when its probe,
ten times a second, says that nothing is pending there, so that a burst of rests stands in a queue as any burst does;
a first token of the first load mostly comes alone, and the hundred of the region came at once as well.
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


_REAL = """## A real engine is killed

Two real engines on the CPU behind one gateway, clients that keep both busy, and SIGKILL for one of them
(`tests/engines/test_resume.py`, by `make test-engines ARGS="--figures docs/results/resume_engines.json"`).
"""


def _killed(killed: Sequence[Killed]) -> str:
    head = (
        "engine",
        "streams",
        "held by it",
        "whole",
        "broken",
        "went on",
        "pause p50",
        "p99",
        "first token p50",
        "p99",
    )
    rows = [
        (
            each.engine,
            *(str(number) for number in (each.streams, each.held, each.whole, each.broken, each.went_on)),
            *_two(each.pause_s),
            *_two(each.first_token_s),
        )
        for each in killed
    ]
    return table(head, rows)


_EXACT = """## How exactly an answer goes on

Greedy answers of real engines, each broken at a random token and held against the unbroken one, by the same tests.
*Equal*: to the last character. All of them are whole.
"""


def _exactness(exactness: Sequence[Exactness]) -> str:
    head = ("engine", "call", "goes on as", "broken", "equal", "share", "others: read as other tokens", "others: else")
    rows = [
        (
            each.engine,
            f"`{each.call}`",
            each.how,
            str(each.breaks),
            str(each.equal),
            f"{each.equal / each.breaks:.0%}" if each.breaks else NOTHING,
            str(each.reread),
            str(each.breaks - each.equal - each.reread),
        )
        for each in exactness
    ]
    return table(head, rows)


_WHY_NOT = """Why not where not. *Read as other tokens*: the second engine has the text alone, and its tokenizer makes
other tokens of it than the first one had generated, so that what is likeliest next is another token. With random
weights that is nearly always so, as what they write is no tokenizer's own reading of anything; a model that was trained
writes what its tokenizer would, but for a break inside a word. Token ids have no such difference. *Else*: the tokens
are the same, and the numbers are not: a prompt is read in one piece, and an answer is written token by token, in
batches of other sizes, and two tokens that are almost as likely change places. The same engine that is asked
the same again does not always answer the same.
"""

_COST = f"""## What it costs an answer that does not break

Of each streamed chunk, in µs of CPU. First what is added by itself, to the very code that a chunk passes in a gateway:
one process, a slice with and a slice without in turn; median of the slices, and the lowest and highest. Beside it, what
that is of the {RELAY_CHUNK_US} µs that the whole gateway takes for a chunk ([relay.md](relay.md)).
"""


def _added(added: Mapping[str, Middle]) -> str:
    head = ("resume", "µs a chunk more", "low–high", "of a chunk in all")
    rows = [
        (
            name,
            f"{each.median:.2f}",
            f"{each.low:.2f}–{each.high:.2f}",
            f"{each.median / RELAY_CHUNK_US:.1%}",
        )
        for name, each in added.items()
    ]
    return table(head, rows)


_COST_WHOLE = """And the whole gateway on one core (`nightside bench relay --measure chunks`) with resume off, on as it
comes, and with token ids; median of the rounds, lowest and highest. What else ran on the machine shows here first.
"""


def _costs(costs: Sequence[Cost]) -> str:
    head = ("resume", "µs a chunk", "low–high", "times that without", "low–high")
    rows = [
        (
            each.setting,
            f"{each.chunk_us.median:.2f}",
            f"{each.chunk_us.low:.2f}–{each.chunk_us.high:.2f}",
            f"{each.ratio.median:.3f}",
            f"{each.ratio.low:.3f}–{each.ratio.high:.3f}",
        )
        for each in costs
    ]
    return table(head, rows)


_COST_NOTE = """The aim is 2 % at most with text; an answer longer than 64 KiB of events is at its edge. Token ids are
off by default, as they cost more.
"""
