"""Journal of a live gateway: one step per line, and its replay on a fresh core.

It never contains a value that could confirm a guess at a client's prompt: see `gateway.records.pseudonyms`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gateway.config.placement_plug_ins import find_policy, placement_faults
from gateway.core.events import ConfigApplied, Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy
from gateway.core.kernel.effects import Effect
from gateway.core.kernel.events import FeatureEvent, ForwardArrived, LegEnded, RequestArrived
from gateway.core.vocabulary import GatewayId, Place
from gateway.records.pseudonyms import Pseudonyms
from gateway.request.driver import GatewayStep, GatewaySubscriptions
from mesh.journal import JournalFiles, JournalSettings, JournalUnreadable, code_version
from mesh.journal_lines import ReplayReport, StoryReader, encode_header, encode_step, tell_again
from mesh.steps import Step

FORMAT = 4


class GatewayJournalHeader(msgspec.Struct, frozen=True):
    """First line of a file: the values needed to build the same core again."""

    format: int
    code_version: str
    gateway_id: GatewayId
    place: Place
    seed: int
    story: str
    """Name of one run of one process; all files of the run share it."""
    part: int
    """Number of the file within the run, from 0."""
    policy: str
    """Placement policy in force when the file was begun."""
    policy_version: str | None
    """Version of a plug-in placement policy; None for a built-in one."""
    tail: bool = False
    """True for the last steps before a crash, which are no run from its beginning."""


class GatewayJournal(JournalFiles):
    """Observer of the driver that encodes steps; the base class writes them."""

    def __init__(
        self,
        settings: JournalSettings,
        header: GatewayJournalHeader,
        on_stopped: Callable[[str], None],
        pseudonyms: Pseudonyms | None = None,
    ) -> None:
        """Raises OSError when the folder cannot be written. Only tests pass pseudonyms."""
        self.header = header
        """Header of the next file, with the placement policy in force."""
        self._pseudonyms = pseudonyms or Pseudonyms()
        self._keeps_sessions = places_by_session(header.policy)
        self._has_hidden_sessions = False
        self.subscriptions: GatewaySubscriptions = {Step: self._step_taken}
        super().__init__(settings, header.story, self._begin_part, on_stopped)

    def _step_taken(self, step: GatewayStep, _told: GatewayStep) -> None:
        if isinstance(step.event, ConfigApplied):
            self._follow_policy(step.event.config.placement)
        self.keep(encode_step(self.told(step)))

    def on_crash(self, now_ns: int, event: Event) -> None:
        """Write the event over which the core failed; a replay is expected to fail there too."""
        self.keep(encode_step(self.told(Step(now_ns, event, None))))

    def told(self, step: GatewayStep) -> GatewayStep:
        """Step with pseudonyms in place of values that may not be written down."""
        event = step.event
        is_broken = isinstance(event, LegEnded) and event.remainder is not None
        if is_broken or isinstance(event, RequestArrived | ForwardArrived):
            self._has_hidden_sessions |= not self._keeps_sessions
            return self._pseudonyms.step(step, keeps_session=self._keeps_sessions)
        if isinstance(event, FeatureEvent):
            return Step(step.now_ns, event.with_hashes(self._pseudonyms.chain), step.effects)
        return step

    def _follow_policy(self, placement: PlacementConfig) -> None:
        self.header = msgspec.structs.replace(
            self.header, policy=placement.policy, policy_version=placement.policy_version
        )
        self._keeps_sessions = places_by_session(placement.policy)
        if self._keeps_sessions and self._has_hidden_sessions:
            self.stop(f"placement policy {placement.policy} may go by session keys, and those so far are not in it")

    def _begin_part(self, part: int) -> bytes:
        return encode_header(msgspec.structs.replace(self.header, part=part))


_BY_SESSION: Final = frozenset({PlacementPolicy.CONSISTENT_HASH, PlacementPolicy.SESSION_STICKY})
"""Policies that look a session up on a hash ring."""


def places_by_session(policy: str) -> bool:
    """True if a placement may depend on the value of a session key, not only on the equality of keys; a replay needs
    the keys then. A plug-in policy may use anything, so it counts."""
    return policy in _BY_SESSION or policy not in frozenset(PlacementPolicy)


def new_header(
    gateway_id: GatewayId, place: Place, placement: PlacementConfig, *, seed: int, story: str
) -> GatewayJournalHeader:
    policy, version = placement.policy, placement.policy_version
    return GatewayJournalHeader(
        FORMAT, code_version(), gateway_id, place, seed, story, part=0, policy=policy, policy_version=version
    )


_READER: StoryReader[GatewayJournalHeader, Event, Effect] = StoryReader(GatewayJournalHeader, FORMAT, Event, Effect)
read_journal = _READER.read


def replay(paths: Sequence[Path]) -> ReplayReport:
    """Replay a run on a fresh core and compare every effect. Raises JournalUnreadable."""
    header, steps = _READER.whole_story(paths)
    core = GatewayCore(header.gateway_id, header.place, seed=header.seed, plug_ins=find_policy)
    return tell_again(core, header.code_version, steps, _require_policy)


def _require_policy(event: Event, step: int) -> None:
    """Check that a placement plug-in of the journal is installed in the recorded version; it would decide differently
    otherwise. Raises JournalUnreadable."""
    if isinstance(event, ConfigApplied):
        for key, what in placement_faults(event.config.placement):
            raise JournalUnreadable(f"step {step} cannot be told again here: placement.{key}: {what}")
