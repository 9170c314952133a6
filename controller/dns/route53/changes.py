"""From the record sets that are there to those that should be: batches that Route53 takes whole or not at all.

Each batch takes the claim away just as it was read and puts the next one there. Route53 takes nothing away that has
changed meanwhile, so that a batch of somebody who was overtaken is refused, with all that is in it. It talks to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from controller.dns.route53.record_sets import RecordSet
from gateway.core.value import value

_RECORDS_MAX = 1_000
_CHARACTERS_MAX = 32_000
"""Of all values, in one batch; what is put there counts twice."""


class Action(StrEnum):
    CREATE = "CREATE"
    DELETE = "DELETE"
    UPSERT = "UPSERT"


_SIGNS = {Action.CREATE: "+", Action.DELETE: "-", Action.UPSERT: "~"}


@value
class Change:
    action: Action
    record_set: RecordSet

    def __str__(self) -> str:
        return f"{_SIGNS[self.action]} {self.record_set}"


def changes_to(found: Sequence[RecordSet], wanted: Sequence[RecordSet]) -> list[Change]:
    """`found` is all that is ours, `wanted` has whoever is led to before whoever leads there: records are put there in
    that order and taken away after, but for those that stand in the way of others of their name."""
    there, should = {each.key: each for each in found}, {each.key: each for each in wanted}
    policies = {(each.name, each.kind): each.policy for each in wanted}
    in_the_way = {
        each.key
        for each in found
        if (each.name, each.kind) in policies and each.policy != policies[each.name, each.kind]
    }
    changes = [Change(Action.DELETE, each) for each in found if each.key in in_the_way]
    for key, each in should.items():
        if key not in there or key in in_the_way:
            changes.append(Change(Action.CREATE, each))
        elif there[key] != each:
            changes.append(Change(Action.UPSERT, each))
    gone = [each for each in found if each.key not in should and each.key not in in_the_way]
    return changes + [Change(Action.DELETE, each) for each in reversed(_leaders_last(gone))]


def batches_of(changes: Iterable[Change], claim_characters: int) -> Iterator[list[Change]]:
    """In their order, with room for the claim in each."""
    batch: list[Change] = []
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
    """Those that only lead to others after those that have addresses; the other way round they are taken away."""
    return sorted(gone, key=lambda each: each.alias is not None)
