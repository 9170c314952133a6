"""Distances between gateways: measured round-trip times where there are any, else estimates along the great circle."""

from __future__ import annotations

from math import asin, cos, radians, sin, sqrt

from controller.core.vocabulary import GatewayEntry, Location
from gateway.core.vocabulary import GatewayId

_EARTH_KM = 6371.0
_RTT_NS_PER_KM = 10_000
"""Round trip of light in fibre for one kilometre: the least that a real one can take."""
_UNKNOWN_NS = 1 << 60


def great_circle_km(one: Location, other: Location) -> float:
    """Great-circle distance by the haversine formula, which is accurate for near and far points alike."""
    latitudes = radians(one.latitude), radians(other.latitude)
    across = sin(radians(other.latitude - one.latitude) / 2) ** 2
    along = sin(radians(other.longitude - one.longitude) / 2) ** 2
    return 2 * _EARTH_KM * asin(min(1.0, sqrt(across + cos(latitudes[0]) * cos(latitudes[1]) * along)))


class Geography:
    """Distances between registered gateways, as nanoseconds of round trip."""

    def __init__(self) -> None:
        self._round_trips_ns: dict[tuple[GatewayId, GatewayId], int] = {}

    def measured(self, one: GatewayId, other: GatewayId, rtt_ns: int) -> bool:
        """Take in a round trip. Returns whether it is the first between these two."""
        is_first = not {(one, other), (other, one)} & self._round_trips_ns.keys()
        self._round_trips_ns[one, other] = rtt_ns
        return is_first

    def forget(self, gone: GatewayId) -> None:
        self._round_trips_ns = {pair: rtt for pair, rtt in self._round_trips_ns.items() if gone not in pair}

    def distance_ns(self, one: GatewayEntry, other: GatewayEntry) -> int:
        """Return the round-trip time between two gateways: 0 within a region, at least 1 otherwise. A gateway at an
        unknown distance sorts last."""
        if one.place.region == other.place.region:
            return 0
        there = self._round_trips_ns.get((one.gateway_id, other.gateway_id), _UNKNOWN_NS)
        back = self._round_trips_ns.get((other.gateway_id, one.gateway_id), _UNKNOWN_NS)
        measured_ns = min(there, back)
        if measured_ns < _UNKNOWN_NS:
            return max(1, measured_ns)
        if one.location is None or other.location is None:
            return _UNKNOWN_NS
        return 1 + round(great_circle_km(one.location, other.location) * _RTT_NS_PER_KM)
