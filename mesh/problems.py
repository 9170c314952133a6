"""Problems that an operator should solve, as `status` prints them and as the page shows them first, and since when each
exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

PROBLEMS_MAX = 200
"""Most problems that are followed; beyond them only their number is known."""
_LOOK_EVERY_NS = 5_000_000_000
_MILLISECOND_NS = 1_000_000
_FAULTS_TOLD_MAX = 3
"""Faults of one refused file that a problem names; the log has all of them."""


class Runbook(StrEnum):
    """Headings of the runbook that say what to do, each named after the alert on the same state. Optional features have
    further ones."""

    NOT_READY = "NightsideNotReady"
    REPLICA_DOWN = "NightsideReplicaDown"
    ALL_REPLICAS_DOWN = "NightsideAllReplicasDown"
    REPLICA_FAILS = "NightsideReplicaFails"
    PEER_UNUSABLE = "NightsidePeerUnusable"
    POLICY_CLOSED = "NightsidePolicyClosed"
    MODEL_IDENTITY_MISMATCH = "NightsideModelIdentityMismatch"
    CERTIFICATE_EXPIRES = "NightsideCertificateExpires"
    CERTIFICATE_EXPIRES_SOON = "NightsideCertificateExpiresSoon"
    JOURNAL_STOPPED = "NightsideJournalStopped"
    AUDIT_FAILING = "NightsideAuditFailing"
    RELOAD_REFUSED = "NightsideReloadRefused"
    CONTROLLER_RELOAD_REFUSED = "NightsideControllerReloadRefused"
    NO_CONTROLLER = "NightsideNoController"
    SNAPSHOT_REJECTED = "NightsideSnapshotRejected"
    SNAPSHOT_NOT_KEPT = "NightsideSnapshotNotKept"
    REPLICAS_LEFT_OUT = "NightsideReplicasLeftOut"
    CONTROLLER_FROZEN = "NightsideControllerFrozen"
    CONTROLLER_STORE_FAILING = "NightsideControllerStoreFailing"
    RECORDS_NOT_PUBLISHED = "NightsideRecordsNotPublished"
    RECORDS_CHANGED_BY_OTHERS = "NightsideRecordsChangedByOthers"
    MESH_GATEWAY_DOWN = "NightsideMeshGatewayDown"
    REPLICAS_ORPHANED = "NightsideReplicasOrphaned"
    PLACE_CLAIM_REFUSED = "NightsidePlaceClaimRefused"


class Problem(msgspec.Struct, frozen=True):
    text: str
    kind: str
    """Stable name of the problem in snake_case. Problems of one kind differ by their subject."""
    subject: str = ""
    """Replica, peer or gateway that has the problem; empty for the process itself."""
    runbook: str = ""
    """Heading of the runbook that says what to do; empty where no alert exists for the state."""
    since_ms: int | None = None
    """Wall-clock time of its begin in ms, where the state has it; None: the time at which it is first seen."""

    def line(self) -> str:
        """Text for a terminal, with the begin where that is known."""
        if self.since_ms is None:
            return self.text
        begin = datetime.fromtimestamp(self.since_ms // 1000, UTC)
        return f"{self.text} (since {begin:%Y-%m-%dT%H:%M:%SZ})"


class RefusedFiles(msgspec.Struct, frozen=True):
    """Changed files of one part that cannot be used, while those read before stay in force."""

    part: str
    files: tuple[str, ...]
    faults: tuple[str, ...]
    since_ms: int
    """Wall-clock time of the first refusal in ms; a later good file ends it."""


def problems_of_files(refused: Sequence[RefusedFiles], runbook: Runbook) -> Iterator[Problem]:
    """One problem for each part of which the files on disk are not in force."""
    for each in refused:
        where = f" ({', '.join(each.files)})" if each.files else ""
        more = len(each.faults) - _FAULTS_TOLD_MAX
        rest = f"; and {more} more faults" if more > 0 else ""
        why = "; ".join(each.faults[:_FAULTS_TOLD_MAX])
        text = f"the changed file of {each.part}{where} is refused, and the one before is in force: {why}{rest}"
        yield Problem(text, "file_refused", each.part, runbook, each.since_ms)


class ProblemWatch:
    """Present problems, each with the time at which it was first seen. Figures in a text may change; a problem stays
    the same one while its kind and subject do."""

    def __init__(self, find: Callable[[], Iterable[Problem]]) -> None:
        self._find = find
        self._found: dict[tuple[str, str], tuple[Problem, int]] = {}
        self._left_out = 0
        self._looked_ns: int | None = None

    def look(self, now_ns: int) -> None:
        """Find the problems anew if the last look is old enough; cheap to call often."""
        if self._looked_ns is not None and now_ns - self._looked_ns < _LOOK_EVERY_NS:
            return
        self._looked_ns = now_ns
        try:
            found = {(each.kind, each.subject): each for each in self._find()}
        except msgspec.ValidationError as error:  # an error of this program: it must not look like a healthy mesh
            unreadable = Problem(f"this process's own state cannot be judged: {error}", "state_unreadable")
            found = {(unreadable.kind, ""): unreadable}
        kept = list(found.items())[:PROBLEMS_MAX]
        before = self._found
        self._found = {key: (each, before[key][1] if key in before else now_ns) for key, each in kept}
        self._left_out = len(found) - len(kept)

    def shown(self, began_ms: int) -> dict[str, object]:
        """Rows of the page, worst first. `began_ms` is the wall-clock time of the monotonic clock's zero, in ms."""
        rows = [
            {
                "text": each.text,
                "kind": each.kind,
                "subject": each.subject,
                "runbook": each.runbook,
                "since_ms": began_ms + since_ns // _MILLISECOND_NS if each.since_ms is None else each.since_ms,
            }
            for each, since_ns in self._found.values()
        ]
        return {"rows": rows, "left_out": self._left_out}
