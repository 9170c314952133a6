"""`nightside gateway config-keys`: every key of a region file. It reads no file and asks no running gateway."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.config.region_file import RegionFile
from gateway.config.sections import Sections
from gateway.core.kernel.config import CoreConfig
from mesh.settings_page import markdown
from mesh.settings_reference import keys_of

_INTRODUCTION = (
    "# Region file",
    "",
    "Every key of the file that a gateway reads, with its type, default and meaning. The meaning is empty where the",
    "code has no more to say than the name. `nightside gateway check FILE` finds faults, and prints every key with its",
    "value. Examples: [the smallest file](../examples/smallest.yaml), and",
    "[a file with every key](../examples/every_key.yaml). This page is made by `make config-pages`, which runs",
    "`nightside gateway config-keys`.",
)


@click.command("config-keys")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the page to this file.")
def config_keys(output: Path | None) -> None:
    """List every key of a region file: type, default and meaning."""
    if output is None:
        click.echo(region_file_page(), nl=False)
    else:
        output.write_text(region_file_page(), encoding="utf-8")


def region_file_page() -> str:
    """Page `docs/reference/region_file.md`."""
    return markdown(_INTRODUCTION, keys_of(RegionFile, CoreConfig, Sections))
