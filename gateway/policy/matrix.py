"""Table of which regions may send requests to which, and a Markdown page of it for readers who run no commands. It
judges nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.kernel.residency import may_enter
from gateway.core.vocabulary import TenantName
from gateway.policy.file import in_words
from gateway.policy.flows import Region, flow_between, one_of
from gateway.policy.words import region_sentences

LEGEND = {
    "here": "processed in the region where it arrives",
    "yes": "may be sent there when that region has room",
    "keeps": "the sender's `process` keeps it away from there",
    "refused": "the receiver's `accept` does not take it in",
    "neither": "both: the sender keeps it, and the receiver would not take it in",
    "421": "refused on arrival (HTTP 421), before any content is read",
    "-": "does not arise",
}


def matrix_rows(regions: list[Region]) -> Iterator[tuple[str, list[str]]]:
    for number, region in enumerate(regions, start=1):
        for tenants in region.groups:
            label = f"   {_short(tenants)}" if tenants else f"{number:2} {in_words(region.place)}"
            yield label, [_cell(region, target, tenants) for target in regions]


def _short(tenants: tuple[TenantName, ...]) -> str:
    return tenants[0] if len(tenants) == 1 else f"{tenants[0]} +{len(tenants) - 1}"


def _cell(region: Region, target: Region, tenants: tuple[TenantName, ...]) -> str:
    if not may_enter(region.policy, one_of(tenants)).allowed:
        return "421" if target is region else "-"
    if target is region:
        return "here"
    flow = flow_between(region, target, tenants)
    match flow.process.allowed, flow.accept.allowed:
        case True, True:
            return "yes"
        case True, False:
            return "refused"
        case False, True:
            return "keeps"
        case _:
            return "neither"


def matrix_page(regions: list[Region]) -> str:
    """Markdown page with the table, the meaning of its cells, and sentences about each region."""
    columns = [_escaped(region.place.region) for region in regions]
    rows = list(matrix_rows(regions))
    used = {cell for _, cells in rows for cell in cells}
    lines = [
        "# Allowed requests between regions",
        "",
        "Written by `nightside policy check --matrix FILE` from the policy files, which are what counts. Each row is a",
        "region, or some of its tenants; each column is where their requests might run.",
        "",
        f"| from / to | {' | '.join(columns)} |",
        f"|---|{'---|' * len(columns)}",
        *(f"| {_row_title(label)} | {' | '.join(cells)} |" for label, cells in rows),
        "",
        *(f"- **{word}**: {meaning}." for word, meaning in LEGEND.items() if word in used),
        "- A request that was sent on is never sent on to another region.",
    ]
    for region in regions:
        lines += [
            "",
            f"## {_escaped(in_words(region.place))}",
            "",
            f"`{region.path.name}`, digest `{region.policy.digest}`",
            "",
        ]
        lines += [f"- {_escaped(sentence)}" for sentence in region_sentences(region, regions)]
    return "\n".join(lines) + "\n"


def _row_title(label: str) -> str:
    """Title of a row; tenants stand below their region."""
    if label.startswith("   "):
        return f"*{_escaped(label.strip())}*"
    return f"**{_escaped(label.lstrip(' 0123456789'))}**"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
