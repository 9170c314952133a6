"""Page `docs/reference/controller_metrics.md`: a table of the series of a controller, from its collectors."""

from __future__ import annotations

from collections.abc import Iterator

from controller.metrics import ControllerMetrics
from mesh.series import Described

_INTRODUCTION = (
    "# Controller metrics",
    "",
    "Every series at `/metrics` of a controller's admin address. A histogram has a `_bucket`, a `_sum` and a `_count`.",
    "The alerts are on [controller.md](../concepts/controller.md#alerts); with `dns.listen` a controller also exports",
    "the `nightside_dns_…` series of [metrics.md](metrics.md). This page is made by `make metrics-page`, which runs",
    "`nightside controller metrics`.",
    "",
    "```console",
    "$ curl --silent http://127.0.0.1:9091/metrics",
    "```",
    "",
    "| series | type | labels | meaning |",
    "| --- | --- | --- | --- |",
)


def markdown() -> str:
    """Return the page."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield from _INTRODUCTION
    yield from (_row(each) for each in ControllerMetrics().catalogue())


def _row(series: Described) -> str:
    labels = ", ".join(f"`{label}`" for label in series.labels)
    return f"| `{series.name}` | {series.kind} | {labels} | {series.words} |"
