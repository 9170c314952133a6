"""Descriptions of a replica that a controller hands to an adopter, each as another gateway announced it, and the reason
why that replica alone is skipped: one case per line. The rest of the snapshot must be applied.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DescriptionCase:
    name: str
    text: str
    why: str
    """Text that the reason must contain; empty where the replica is served."""
    label: str = "lent"
    """Name of the replica in the reason: its id, or its index in the list."""
    accepts: bool = True
    """True if the home gateway has stated what the replica accepts."""
    times: int = 1


def described(**changes: Any) -> str:
    told = {"id": "lent", "url": "http://127.0.0.1:9", "models": ["llama"], "region": "eu-west-1", "jurisdiction": "EU"}
    return json.dumps(told | changes)


_FIRST = "replicas[0]"
_DEEP = "[" * 100_000

# fmt: off
DESCRIPTION_CASES = (
    DescriptionCase("nothing wrong", described(), ""),
    # Invalid documents
    DescriptionCase("nothing", "", "it is not JSON", _FIRST),
    DescriptionCase("no JSON", "{", "it is not JSON", _FIRST),
    DescriptionCase("a list", "[]", "it is not a JSON object", _FIRST),
    DescriptionCase("levels without end", '{"id": "lent", "a": ' + _DEEP, "it is not JSON", _FIRST),
    DescriptionCase("null", "null", "it is not a JSON object", _FIRST),
    # Ids
    DescriptionCase("no id", described(id=None), "it is no id", _FIRST),
    DescriptionCase("an id with a line break", described(id="a\nb"), "it is no id", _FIRST),
    DescriptionCase("an id that is a list", described(id=["lent"]), "it is no id", _FIRST),
    DescriptionCase("an id of 10,000 letters", described(id="a" * 10_000), "it is no id", _FIRST),
    DescriptionCase("an id of a script", described(id="<script>"), "it is no id", _FIRST),
    DescriptionCase("our own replica's id", described(id="us-1-r0"), "is in this gateway's own region file", _FIRST),
    DescriptionCase("one id twice", described(), "granted twice", times=2),
    DescriptionCase("one id three times", described(), "granted twice", times=3),
    # Fields
    DescriptionCase("a key of a later version", described(colour="red"), "colour: is not a known key"),
    DescriptionCase("a key with a line break", described(**{"a\nb": 1}), "holds a key that is not known, and no name"),
    DescriptionCase("a thousand keys", described(**{f"k{number}": 1 for number in range(1000)}), "is not a known key"),
    DescriptionCase("no models", described(models=[]), "models"),
    DescriptionCase("a model with a line break", described(models=["a\nb"]), "models"),
    DescriptionCase("a model twice", described(models=["a", "a"]), "twice"),
    DescriptionCase("models that are a number", described(models=5), "models"),
    DescriptionCase("slots below none", described(slots=-1), "slots"),
    DescriptionCase("slots beyond all", described(slots=10**30), "slots"),
    DescriptionCase("slots that are no number", '{"slots": NaN, ' + described()[1:], "slots"),
    DescriptionCase("2**31 ranks", described(data_parallel_ranks=2**31), "data_parallel_ranks"),
    DescriptionCase("a dialect that nobody speaks", described(dialect="latin"), "dialect"),
    DescriptionCase("a role that is none", described(role="king"), "role"),
    DescriptionCase("a pool that is no name", described(pool="a b"), "pool"),
    DescriptionCase("a group of 10,000 letters", described(role="decode", group="g" * 10_000), "group"),
    DescriptionCase("a certificate without its key", described(url="https://127.0.0.1:9", tls={"client_certificate": "/etc/passwd"}), "tls"),
    DescriptionCase("a file for a key", described(api_key_file="/etc/shadow"), "api_key_file"),
    DescriptionCase("a key of our environment", described(api_key_env="HOME"), "api_key_env"),
    # Places
    DescriptionCase("a URL with a query", described(url="http://127.0.0.1:9/?x=1"), "url"),
    DescriptionCase("a URL of a cloud's metadata", described(url="http://169.254.169.254"), "none of the ranges"),
    DescriptionCase("a side channel in a cloud's metadata", described(role="prefill", side_channel_hosts=["169.254.169.254"]), "side_channel_hosts: 169.254.169.254 is in none of the ranges"),
    DescriptionCase("a side channel everywhere", described(role="prefill", side_channel_hosts=["0.0.0.0/0"]), "names no networks"),
    DescriptionCase("side channels without end", described(role="prefill", side_channel_hosts=["127.0.0.1"] * 2_000), "side_channel_hosts: it names more than 64"),
    DescriptionCase("a side channel that is a list of its own", described(role="prefill", side_channel_hosts=[["127.0.0.1"]]), "side_channel_hosts: one of them is no text"),
    DescriptionCase("side channels that are a text", described(role="prefill", side_channel_hosts="127.0.0.1"), "side_channel_hosts"),
    DescriptionCase("a region without a jurisdiction", described(jurisdiction=None), "region and jurisdiction"),
    DescriptionCase("half of another place", described(region="us-east-1"), "has region us-east-1 in US"),
    # Policies
    DescriptionCase("nothing of what its home accepts", described(), "nothing says what its home accepts", accepts=False),
)
# fmt: on
