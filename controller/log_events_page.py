"""Page `docs/reference/log_events.md`: a table of the log events of gateways and controllers, from their registries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from controller.log_events import CONTROLLER
from mesh.gateway_log_events import GATEWAY
from mesh.log_events import SHARED, LogEvent

_INTRODUCTION = (
    "# Log events",
    "",
    "Every event that a gateway or a controller logs, by its stable name. Beside the fields below, each line has",
    "`event`, `level`, `timestamp`, and `gateway` or `controller` with the name of the process. A field is absent",
    "where it does not apply; `exception` is a traceback. This page is made by `make log-events-page`, which runs",
    "`nightside controller log-events`.",
    "",
    "```json",
    '{"gateway":"us-east-1a","replica":"vllm-0","after_s":4.2,"event":"replica_up","level":"info","timestamp":"2026-11-22T12:00:00.000000Z"}',
    "```",
)

_HEADER = "| event | level | fields | meaning | what to do |"
_RULE = "| --- | --- | --- | --- | --- |"


def markdown() -> str:
    """Return the page."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield from _INTRODUCTION
    for title, events in (("Both programs", SHARED), ("Gateway", GATEWAY), ("Controller", CONTROLLER)):
        yield from ("", f"## {title}", "", _HEADER, _RULE)
        yield from _rows(events)


def _rows(events: Iterable[LogEvent]) -> Iterator[str]:
    for each in events:
        fields = ", ".join(f"`{field}`" for field in each.fields)
        yield f"| `{each.name}` | {', '.join(each.levels)} | {fields} | {each.meaning} | {each.action} |"
