"""Counts of resumptions that gateways tell each other, as the feature's note."""

from __future__ import annotations

from msgspec import Struct

from gateway.core.vocabulary import Notes

_NOTE = "resume"


class Resumes(Struct, frozen=True):
    """Count of resumes of a broken answer over all gateways involved: those still allowed, or those used."""

    count: int
    first_step_deaths: int = 0
    """Consecutive engines so far that failed the rest of the answer before its first token."""


NO_RESUMES = Resumes(0)


def resumes_in(notes: Notes) -> Resumes | None:
    """Counts in the notes; None: no gateway has told them."""
    told = notes.get(_NOTE)
    return None if told is None else Resumes(*told)


def with_resumes(notes: Notes, resumes: Resumes) -> Notes:
    """Notes with these counts."""
    return {**notes, _NOTE: (resumes.count, resumes.first_step_deaths)}
