"""Journal of a live controller, one step a line, and its replay by a fresh core.

The journal holds no secrets: it names replicas, and the core does not know how to reach them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from controller.core.controller_core import ControllerCore
from controller.core.effects import Effect
from controller.core.events import Event
from controller.driver import ControllerCrash, ControllerStep, ControllerSubscriptions
from mesh.journal import JournalFiles, JournalSettings, code_version
from mesh.journal_lines import ReplayReport, StoryReader, encode_header, encode_step, tell_again, write_tail
from mesh.steps import Step

FORMAT = 3


class ControllerJournalHeader(msgspec.Struct, frozen=True):
    """First line of a file. A controller's core begins empty: all that it knows came in events."""

    format: int
    code_version: str
    controller: str
    story: str
    """Name of one run of one process; the files of a run share it."""
    part: int
    """Number of the file in its run, from 0."""
    tail: bool = False
    """The file holds the last steps before a crash, not a run from its beginning."""


class ControllerJournal(JournalFiles):
    """Observer of the driver, which only encodes."""

    def __init__(
        self, settings: JournalSettings, header: ControllerJournalHeader, on_stopped: Callable[[str], None]
    ) -> None:
        """Open the journal. Raises OSError when the folder cannot be written."""
        self.header = header
        self.subscriptions: ControllerSubscriptions = {Step: self._step_taken}
        super().__init__(settings, header.story, self._begin_part, on_stopped)

    def _step_taken(self, step: ControllerStep, _told: ControllerStep) -> None:
        self.keep(encode_step(step))

    def on_crash(self, crash: ControllerCrash) -> Path:
        """Keep the step that failed, over which a replay is expected to fail too, and write the steps before it to a
        file of their own, whose path is returned. Raises OSError."""
        last = crash.tail[-1] if crash.tail else None
        if last is not None and last.effects is None:
            self.keep(encode_step(last))
        path = self.folder / f"{self.header.story}.crash"
        write_tail(path, self.header, crash.tail)
        return path

    def _begin_part(self, part: int) -> bytes:
        return encode_header(msgspec.structs.replace(self.header, part=part))


def new_header(controller: str, story: str) -> ControllerJournalHeader:
    return ControllerJournalHeader(FORMAT, code_version(), controller, story, part=0)


_READER: StoryReader[ControllerJournalHeader, Event, Effect] = StoryReader(
    ControllerJournalHeader, FORMAT, Event, Effect
)
read_journal = _READER.read


def replay(paths: Sequence[Path]) -> ReplayReport:
    """Replay a run with a fresh core and compare every effect. Raises JournalUnreadable."""
    header, steps = _READER.whole_story(paths)
    return tell_again(ControllerCore(), header.code_version, steps)
