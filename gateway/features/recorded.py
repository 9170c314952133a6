"""Words that features add to explanations of decisions, and commands that they add to `nightside audit`.

Nothing here loads what a gateway serves with.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from gateway.features.cache_digests.words import CacheDigestWords
from gateway.features.disaggregated.words import DecodeWords
from gateway.features.kv_events.words import KvEventWords
from gateway.features.lengths.words import PoolWords
from gateway.features.prices.audit_cli import price
from gateway.features.prices.words import PriceWords
from gateway.features.resume.words import ResumeWords
from gateway.features.stored_responses.words import StoredResponseWords
from gateway.features.words import Words

WORDS: Sequence[Words] = [
    CacheDigestWords(),
    DecodeWords(),
    KvEventWords(),
    PoolWords(),
    PriceWords(),
    ResumeWords(),
    StoredResponseWords(),
]
AUDIT_COMMANDS: Sequence[click.Command] = [
    price,
]
