"""Prices in `nightside gateway status`: the list in force, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.features.status import StatusView
from mesh.problems import Problem

_DAY_S = 86_400


class PricesView(StatusView, frozen=True):
    """Price list of a gateway that has one."""

    source: str
    fault: str
    digest: str = ""
    currency: str = ""
    age_s: float | None = None
    valid_s: float | None = None
    since_s: float | None = None
    next_change_s: float | None = None

    def problems(self) -> Iterator[Problem]:
        if self.fault:
            text = f"a price list was refused, and the one before is in force: {self.fault}"
            yield Problem(text, "price_list_refused", runbook="NightsidePricesRefused")
        if self.valid_s is not None and self.valid_s < 0:
            text = f"the price list was to be looked at again {-self.valid_s / _DAY_S:.0f} days ago (valid_until)"
            yield Problem(text, "price_list_out_of_date", runbook="NightsidePricesOutOfDate")

    def headlines(self) -> Iterator[str]:
        if not self.digest:
            return
        whose = "a controller's list" if self.source == "controller" else "the region file's list"
        told = f"prices: {whose} {self.digest} in {self.currency}, in force for {_span(self.age_s or 0)}"
        if self.next_change_s is None:
            yield told
        else:
            yield f"{told}; these since {_span(self.since_s or 0)}, others in {_span(self.next_change_s)}"


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
