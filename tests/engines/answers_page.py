"""Writes the page that compares answers through gateways with the engine's own. It judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.pages import markdown

ENGINE = "llama.cpp (xllamacpp 2026.10.11549), SmolLM2-135M-Instruct on a CPU, temperature 0, `cache_prompt: false`"


@dataclass(frozen=True, slots=True)
class Compared:
    """One answer that was equal to the engine's own."""

    call: str
    form: str
    """Whole, or a stream."""
    way: str
    equality: str
    """Form of the equality, in words."""


def page_of(compared: Sequence[Compared]) -> str:
    """The page: a row for each call and form, and a column for each way."""
    ways = list(dict.fromkeys(each.way for each in compared))
    found = {(each.call, each.form, each.way): each.equality for each in compared}
    calls = list(dict.fromkeys((each.call, each.form) for each in compared))
    rows = [[call, form, *(found.get((call, form, way), "–") for way in ways)] for call, form in calls]
    return (
        "\n\n".join(
            [
                "# Does the gateway change answers?",
                f"Written by `make answers`; do not edit. {ENGINE}. Each prompt is asked of the engine, of a"
                " gateway in its region, and of a gateway in another region, which forwards it. A test fails where one"
                " differs, so that the page has no row that does.",
                markdown.table(["call", "answer", *ways], rows),
                "- **to the byte**: the client got each byte that the engine sent, and the answer equals the direct one"
                " but for what the engine makes anew each time: `id`, `created`, `timings`.\n"
                "- **resumed**: the stream was cut after each of its events in turn, and another engine went on; all"
                " events equal those of an unbroken stream, but for `created` and `timings`, besides the comment that"
                " [tells of the resume](../concepts/resume.md#what-happens).",
                "## Limits\n\n"
                "- One small model, with one request at a time: engines that batch may differ by themselves.\n"
                "- The model is offered a tool and calls none: its template tells it nothing of tools.\n"
                "- Answers with tools, a schema or logprobs are"
                " [not resumed](../concepts/resume.md#resumable-requests).\n"
                "- A break inside a word may give [another continuation](resume.md#how-exactly-an-answer-goes-on).\n"
                "- vLLM's answers are compared with the engine's bytes by `make test-engines`, not here.",
            ]
        )
        + "\n"
    )
