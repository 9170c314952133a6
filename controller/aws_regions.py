"""AWS regions of the mesh's regions: a region may have the name of an AWS region, or a name of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mesh.faults import FileFault

_AWS_REGION = re.compile(r"[a-z]{2,3}(-[a-z]+)+-[0-9]")


def is_aws_region(name: str) -> bool:
    """Return whether a name is written as those of AWS regions are."""
    return _AWS_REGION.fullmatch(name) is not None


def aws_region_faults(regions: Mapping[str, str], key: str) -> Iterator[FileFault]:
    """Yield the faults of a table of AWS regions by the mesh's regions, which is written at `key`."""
    for region, aws_region in regions.items():
        if not is_aws_region(aws_region):
            yield FileFault(f"{key}.{region}", f"{aws_region!r} is not an AWS region such as eu-west-1")
