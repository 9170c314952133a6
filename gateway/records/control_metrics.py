"""Metrics of this gateway's link to its controllers, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.vocabulary import ControlVersion


class ControlState(Protocol):
    """State of the link, as the metrics read it."""

    @property
    def is_wanted(self) -> bool: ...
    @property
    def is_attached(self) -> bool: ...
    @property
    def version(self) -> ControlVersion: ...
    @property
    def snapshot_age_s(self) -> float | None: ...
    @property
    def is_kept(self) -> bool: ...
    @property
    def taken(self) -> int: ...
    @property
    def rejected(self) -> int: ...
    @property
    def left_out(self) -> int: ...
    @property
    def away(self) -> int: ...


class ControlLevels(Collector):
    """Collector of the link's series; without named controllers they appear on the page without values."""

    def __init__(self, control: ControlState | None) -> None:
        self._control = control

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        control = self._control
        attached = _gauge("attached", "1 while a controller is connected and sends messages.")
        term = _gauge("term", "Term of the controller whose snapshot is in force; 0: no snapshot.")
        version = _gauge("version", "Version of the controller snapshot in force, within its term.")
        age = _gauge("snapshot_age_seconds", "Time since the controller snapshot in force was received.")
        kept = _gauge(
            "snapshot_kept", "1 if the controller snapshot in force is stored on disk and survives a restart."
        )
        left_out = _gauge(
            "replicas_left_out", "Replicas assigned to this gateway by the controller that it cannot serve."
        )
        away = _gauge("replicas_away", "Replicas of the mesh that are assigned to other gateways.")
        words = "Snapshots received from controllers, by result."
        snapshots = CounterMetricFamily("nightside_control_snapshots", words, labels=("result",))
        if control is not None and control.is_wanted:
            attached.add_metric((), control.is_attached)
            term.add_metric((), control.version.term)
            version.add_metric((), control.version.version)
            if control.snapshot_age_s is not None:
                age.add_metric((), control.snapshot_age_s)
            kept.add_metric((), control.is_kept)
            left_out.add_metric((), control.left_out)
            away.add_metric((), control.away)
            snapshots.add_metric(("taken",), control.taken)
            snapshots.add_metric(("rejected",), control.rejected)
        yield from (attached, term, version, age, kept, left_out, away, snapshots)


def _gauge(name: str, words: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"nightside_control_{name}", words, labels=())
