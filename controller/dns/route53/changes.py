"""Changes from the present record sets to the wanted ones, in batches that Route53 applies whole or not at all.

Each batch deletes the claim exactly as it was read and creates the next one. Route53 deletes no record set that has
changed meanwhile, so that the batch of a superseded writer is refused whole. The module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from controller.dns.route53.record_sets import RecordSet

_RECORDS_MAX = 1_000
_CHARACTERS_MAX = 32_000
"""Characters of all values in one batch; an upsert counts twice."""


class Action(StrEnum):
    CREATE = "CREATE"
    DELETE = "DELETE"
    UPSERT = "UPSERT"


_SIGNS = {Action.CREATE: "+", Action.DELETE: "-", Action.UPSERT: "~"}


class RecordChange(Struct, frozen=True):
    action: Action
    record_set: RecordSet

    def __str__(self) -> str:
        return f"{_SIGNS[self.action]} {self.record_set}"


def changes_to(found: Sequence[RecordSet], wanted: Sequence[RecordSet]) -> list[RecordChange]:
    """Return the changes in order. `found` is all that the claim covers; `wanted` lists targets before the aliases that
    lead to them. Records are created in that order, and deleted afterwards, aliases first; those in the way of other
    records of their name are deleted before all else."""
    there, should = {each.key: each for each in found}, {each.key: each for each in wanted}
    policies = {(each.name, each.kind): each.policy for each in wanted}
    in_the_way = {
        each.key
        for each in found
        if (each.name, each.kind) in policies and each.policy != policies[each.name, each.kind]
    }
    changes = [RecordChange(Action.DELETE, each) for each in found if each.key in in_the_way]
    for key, each in should.items():
        if key not in there or key in in_the_way:
            changes.append(RecordChange(Action.CREATE, each))
        elif there[key] != each:
            changes.append(RecordChange(Action.UPSERT, each))
    gone = [each for each in found if each.key not in should and each.key not in in_the_way]
    return changes + [RecordChange(Action.DELETE, each) for each in reversed(_leaders_last(gone))]


def batches_of(changes: Iterable[RecordChange], claim_characters: int) -> Iterator[list[RecordChange]]:
    """Split changes into batches, in order, each with room for the claim."""
    batch: list[RecordChange] = []
    records, characters = 2, 2 * claim_characters
    for each in changes:
        times = 2 if each.action is Action.UPSERT else 1
        more = times * max(1, len(each.record_set.values))
        length = times * sum(map(len, each.record_set.values))
        if batch and (records + more > _RECORDS_MAX or characters + length > _CHARACTERS_MAX):
            yield batch
            batch, records, characters = [], 2, 2 * claim_characters
        batch.append(each)
        records, characters = records + more, characters + length
    if batch:
        yield batch


def _leaders_last(gone: Iterable[RecordSet]) -> list[RecordSet]:
    """Record sets with addresses before aliases, and HTTPS records, which lead to aliases, at the end; they are deleted
    in the reverse order."""
    return sorted(gone, key=lambda each: (each.kind == "HTTPS", each.alias is not None))
