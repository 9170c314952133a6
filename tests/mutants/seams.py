"""Puts a mutated function in the place of one that the core names, and counts its calls.

It knows no defect, and nothing of the core but how to find a name in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from inspect import getattr_static
from pathlib import Path
from typing import Any

from loadgen.simulator.chaos import ChaosKind

Original = Callable[..., Any]
"""Function at the seam without the mutant; a mutated function gets it as its first argument."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect."""

    what: str
    """Description of the defect."""
    seam: str
    """`module:function` or `module:Class.method`; a property counts as a method."""
    mutated: Callable[..., Any]
    hunter: str = ""
    """Test that must find it; empty if chaos must find it."""
    kind: ChaosKind = ChaosKind.MESH
    """Kind of world in which chaos must find it."""

    @property
    def name(self) -> str:
        return self.mutated.__name__


class Plant:
    """A mutant in its place, for as long as the process lives."""

    def __init__(self, planted: Mutant) -> None:
        self._mutant = planted
        self.calls = 0
        self.misfit: Exception | None = None
        owner, name, found = resolve(planted)
        if isinstance(found, property):
            assert found.fget is not None
            setattr(owner, name, property(self._instead_of(found.fget)))
            return
        instead = self._instead_of(found)
        setattr(owner, name, instead)
        for module in list(sys.modules.values()):
            for held_as, held in list(vars(module).items()):
                if held is found:  # was imported by name earlier
                    setattr(module, held_as, instead)

    def _instead_of(self, original: Original) -> Original:
        def instead(*args: object, **kwargs: object) -> object:
            self.calls += 1
            try:
                return self._mutant.mutated(original, *args, **kwargs)
            except (AttributeError, TypeError, ValueError) as error:
                if _was_raised_in(error, (__file__, self._mutant.mutated.__code__.co_filename)):
                    self.misfit = error
                raise

        return instead

    def check(self) -> None:
        """Assert that the mutant fits its seam and was called there: without that, any result says nothing."""
        told = f"the mutant {self._mutant.name} at {self._mutant.seam}"
        if self.misfit is not None:
            raise AssertionError(f"{told} does not fit any more: {self.misfit}") from self.misfit
        assert self.calls > 0, f"{told} was never called"


def resolve(planted: Mutant) -> tuple[Any, str, Any]:
    """Owner of the seam, its name there, and its value. Raises AttributeError if the core has no such seam."""
    module_name, _, path = planted.seam.partition(":")
    *outer, name = path.split(".")
    try:
        owner: Any = import_module(module_name)
        for each in outer:
            owner = getattr(owner, each)
        return owner, name, getattr_static(owner, name)
    except (ImportError, AttributeError) as error:
        told = f"the mutant {planted.name} wants {planted.seam}, which is not there any more: {error}"
        raise AttributeError(told) from error


def _was_raised_in(error: Exception, files: tuple[str, ...]) -> bool:
    """True if the error was raised in one of these files itself, and not in a function called from there."""
    trace = error.__traceback__
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return Path(trace.tb_frame.f_code.co_filename) in map(Path, files)
