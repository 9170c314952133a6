"""Assembles the page about sharing: each part writes its own section from its measurements. It measures nothing
itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def page_of(sections: Sequence[str], machine: Mapping[str, object], command: str) -> str:
    head = f"""# Sharing the fleet

Written by `make results NAME=sharing` (`{command}`); do not edit. In virtual time, with the gateways' own core and
emulated engines: it comes out the same on any machine. Played on {machine["cpu"]}, {machine["cores"]} cores,
{machine["python"]}. How it works is in [sharing.md](../how_to/sharing.md).
"""
    return "\n".join([head, *(each.rstrip() + "\n" for each in sections)])
