"""Rows that features add to `nightside gateway status`, and commands that they add to `nightside gateway`.

Nothing here loads what a gateway serves with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from gateway.features.batches.status import BatchesView
from gateway.features.disaggregated.status import DisaggregatedView
from gateway.features.leaving.status import LeavingView
from gateway.features.lockdown.cli import lockdown
from gateway.features.lockdown.status import LockdownView
from gateway.features.prices.status import PricesView
from gateway.features.scaling.status import ScalingView
from gateway.features.status import StatusView

VIEWS: Mapping[str, type[StatusView]] = {
    "batches": BatchesView,
    "disaggregated": DisaggregatedView,
    "leaving": LeavingView,
    "lockdown_order": LockdownView,
    "prices": PricesView,
    "scaling": ScalingView,
}
"""Rows of the status, by the key of the gateway's state that they are read from."""
COMMANDS: Sequence[click.Command] = [
    lockdown,
]
