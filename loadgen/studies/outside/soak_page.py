"""Section of the page about a soak. It computes no figure that another module measures, and must never leave out an
error that no kill explains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from loadgen.pages.markdown import NOTHING
from loadgen.studies.long.flatness import FLAT_SHARE
from loadgen.studies.outside.counts import COMPLETED, LEFT, RunCounts
from loadgen.studies.outside.soak import (
    CHUNK_S,
    DOWN_S,
    KILLS_OF_GATEWAY,
    SAMPLE_S,
    ErrorCause,
    KeptSoak,
    SoakError,
    SoakKill,
    cause_of,
    causes_of,
    ends_of,
    held_in,
    kill_every_s,
    soak_judgement,
)
from loadgen.studies.rendering import render, shortened

_SECOND_NS = 1_000_000_000
_NAMED_MAX = 40
_UNREAD_MAX = 400


def soak_section(soak: KeptSoak, errors: Sequence[SoakError], counts: RunCounts, unread: str = "") -> str:
    """Text of the section; `counts` are AIPerf's own, and `unread` is the reason why its report could not be read, if
    there is one."""
    ends = ends_of(soak)
    others = {name: number for name, number in sorted(ends.items()) if name not in (COMPLETED, LEFT)}
    causes = causes_of(errors, soak.kills)
    return render(
        "outside/soak.j2", soak=soak, counts=counts, minutes=soak.seconds / 60, every_s=kill_every_s(soak.seconds),
        mortal=next((each.name for each in soak.kills if each.address is not None), NOTHING), down_s=DOWN_S,
        kills_of_gateway=KILLS_OF_GATEWAY,
        loads=(min(soak.loads), max(soak.loads), median(soak.loads)) if soak.loads else None, sample_s=SAMPLE_S,
        chunk_s=CHUNK_S, unread=shortened(unread, _UNREAD_MAX),
        ends={"completed": ends[COMPLETED], "abandoned": ends[LEFT], "failed": sum(others.values())},
        reasons=_reasons(others), causes=[(cause, causes[cause]) for cause in ErrorCause],
        strange=[*_strange(soak, errors)], kills=[*_kills(soak.kills)], held=[*held_in(soak)], flat_share=FLAT_SHARE,
        judged=soak_judgement(soak, errors, counts, unread),
    )  # fmt: skip


def _reasons(others: dict[str, int]) -> str:
    """Ends that gateways count as errors, in words."""
    named = ", ".join(f"{number} × `{name}`" for name, number in others.items())
    return f"Their errors: {named}." if named else "They count no error."


def _strange(soak: KeptSoak, errors: Sequence[SoakError]) -> Iterator[str]:
    """Errors that no kill explains, each by itself."""
    found = [each for each in errors if cause_of(each, soak.kills) is ErrorCause.UNEXPLAINED]
    for each in found[:_NAMED_MAX]:
        begin, end = ((moment - soak.began_ns) / _SECOND_NS for moment in (each.began_ns, each.ended_ns))
        where = "an unknown address" if each.address is None else soak.addresses[each.address]
        yield f"not explained: {where}, {begin:.1f} to {end:.1f} s: `{shortened(each.text, 400)}`"
    if len(found) > _NAMED_MAX:
        yield f"not explained: {len(found) - _NAMED_MAX} more, not named here"


def _kills(kills: Sequence[SoakKill]) -> Iterator[tuple[str, ...]]:
    for name in dict.fromkeys(each.name for each in kills):
        own = [each for each in kills if each.name == name]
        ready = [(each.ready_ns - each.killed_ns) / _SECOND_NS for each in own if each.is_ready]
        whole = [(each.whole_ns - each.killed_ns) / _SECOND_NS for each in own if each.whole_ns is not None]
        yield name, str(len(own)), _range(ready), _range(whole), str(len(own) - len(whole))


def _range(times_s: Sequence[float]) -> str:
    return f"{min(times_s):.1f}–{max(times_s):.1f}" if times_s else NOTHING
