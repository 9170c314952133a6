"""The controller's core with the state around it: the registry, the stored documents, and the records.

The manager carries out decisions made elsewhere, in the only order that loses nothing: first stored, then sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from controller import documents
from controller.core.config import ControllerConfig
from controller.core.controller_core import ControllerCore
from controller.core.effects import KeepOwners, KeepPolicy, TellCondition
from controller.core.events import (
    ControllerConfigApplied,
    FreezeLifted,
    FreezeOrdered,
    GatewayConnected,
    NarrowingApplied,
    PolicyAccepted,
    RegistryApplied,
    StateRestored,
)
from controller.core.vocabulary import Condition
from controller.documents import Changes, decode, encode
from controller.driver import ControllerDriver
from controller.registry import AnnouncementRefused, PlaceRefused, Registry, registry_of
from controller.store_writer import StoreWriter, Written
from controller.views import View, ViewFeed
from gateway.core.kernel.narrowing import narrowed
from gateway.core.kernel.regions import RegionTable
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import ControlVersion, GatewayId, RegionName
from mesh.control.vocabulary import Hello
from mesh.naming.tree import Area, NameServer, RecordTree

_SECOND_NS = 1_000_000_000
_REFUSED_MAX = 64
TERM_LEAP_MAX = 1 << 20
"""Terms by which a gateway's report may exceed the controller's. Each start of a controller is a term; a gateway that
reports far more is not believed, since one false report could use up all terms."""


class Naming:
    """Facts that the core does not know: the zone, its name servers, and the networks of clients."""

    def __init__(
        self,
        zone: str = "",
        name_servers: tuple[NameServer, ...] = (),
        networks: Mapping[RegionName, tuple[str, ...]] | None = None,
        port: int = 443,
        *,
        tls: bool = True,
    ) -> None:
        self._zone = zone
        self._name_servers = name_servers
        self._networks = dict(networks or {})
        self._port = port
        self._tls = tls

    def dressed(self, tree: RecordTree, last: RecordTree | None, now_s: int) -> RecordTree:
        """Return the tree as it is published, with its own version; `last` itself where the two are equal but for
        that."""
        whole = replace(
            tree,
            version=next_version(None, now_s) if last is None else last.version,
            areas=tuple(self._area(each) for each in tree.areas),
            zone=self._zone,
            name_servers=self._name_servers,
            port=self._port,
            tls=self._tls,
        )
        if last is None:
            return whole
        return last if whole == last else replace(whole, version=next_version(last, now_s))

    def _area(self, area: Area) -> Area:
        return replace(area, networks=self._networks.get(area.region, ()))


def next_version(last: RecordTree | None, now_s: int) -> int:
    """Return a version by the wall clock, as zone serials often are: the zone's serial never goes back, neither after
    the store was lost nor after trees that were published and never stored."""
    return max(1, now_s, 0 if last is None else last.version + 1)


class StateManager:
    """State around the core. All calls come from one event loop's thread."""

    def __init__(
        self,
        core: ControllerCore,
        driver: ControllerDriver,
        store_writer: StoreWriter,
        contents: Mapping[str, bytes],
        naming: Naming,
        *,
        wall_ns: Callable[[], int],
        regions: RegionTable,
    ) -> None:
        """`contents` is what the store holds, `regions` the operators' table. Raises StoreUnusable where the store
        cannot be read."""
        self.places_refused: dict[GatewayId, str] = {}
        """Gateways whose last announcement named a place other than the table's, the newest ones, and why each was
        refused."""
        self._wall_ns = wall_ns
        self.core = core
        self.driver = driver
        self.store_writer = store_writer
        self.board = ViewFeed()
        self.registry = registry_of(contents, regions)
        self.naming = naming
        self._on_records: list[Callable[[RecordTree], None]] = []
        self._records = records_in(contents)
        self._policies = documents.policies_in(contents)
        self._owners = documents.owners_in(contents)
        self._down = documents.down_in(contents)
        self._assignment = int(contents.get(documents.ASSIGNMENT, b"0"))
        store_writer.follow(self._take)
        driver.on_keep(self._keep)
        driver.on_records(self._name)

    def on_records(self, publish: Callable[[RecordTree], None]) -> None:
        """Add a publisher of records, and give it the present ones."""
        self._on_records.append(publish)
        if self._records is not None:
            publish(self._records)

    @property
    def records(self) -> RecordTree | None:
        return self._records

    def start(self, config: ControllerConfig) -> None:
        """Restore the core's state from the store and publish it: it holds until newer state is stored."""
        view = View(
            self.store_writer.version,
            self.registry,
            self._owners,
            in_force(self._policies, self.registry),
            self._records,
        )
        self.driver.submit(ControllerConfigApplied(config))
        owners, policies = tuple(sorted(self._owners.items())), tuple(self._policies.values())
        restored = StateRestored(self._assignment, owners, policies, tuple(sorted(self._down)))
        self.driver.submit(restored)
        self.board.put(view)
        if self._records is not None:
            self._say(replace(self._records, version=next_version(self._records, self._now_s)))
        self._apply_narrowings()
        self._apply_registry()
        if self.registry.freeze is not None:
            self.driver.submit(FreezeOrdered(self.registry.freeze.reason))

    def configure(self, config: ControllerConfig, naming: Naming) -> None:
        self.naming = naming
        self.driver.submit(ControllerConfigApplied(config))
        if self.core.tree is not None:
            self._name(self.core.tree)

    # Registry

    async def change(self, changes: Changes) -> ControlVersion:
        """Apply changes: stored and in force when this returns. Raises StoreError, and nothing has changed then."""
        await self.store_writer.write(changes)
        return self.store_writer.version

    async def register(self, hello: Hello) -> None:
        """Register a gateway. Raises AnnouncementRefused, and StoreError. A gateway that serves by a newer version than
        was ever stored has it from a store that was lost: the term rises above that one, since the gateway would
        otherwise refuse every message for ever."""
        above = self._term_above(hello)
        self.places_refused.pop(hello.gateway_id, None)
        try:
            changes = self.registry.announce(hello)
        except PlaceRefused as refused:
            self._note_place_refused(hello.gateway_id, str(refused))
            raise
        if changes or above:
            await self.store_writer.write(changes, above=above)

    def _note_place_refused(self, gateway_id: GatewayId, why: str) -> None:
        if len(self.places_refused) >= _REFUSED_MAX:
            del self.places_refused[next(iter(self.places_refused))]
        self.places_refused[gateway_id] = why

    def _term_above(self, hello: Hello) -> int:
        """Return the term above which the controller's has to rise; 0: none."""
        taken, ours = hello.taken, self.store_writer.version
        if not taken.is_newer_than(ours):
            return 0
        if taken.term > ours.term + TERM_LEAP_MAX:
            raise AnnouncementRefused(f"it says that it serves by term {taken.term}, and no controller can be so far")
        return taken.term

    def connected(self, hello: Hello) -> None:
        self.driver.submit(GatewayConnected(hello.gateway_id, hello.policy))

    def policy_changed(self, gateway_id: GatewayId, policy: ResidencyPolicy) -> None:
        self.driver.submit(PolicyAccepted(gateway_id, policy))

    def _apply(self, registry: Registry) -> None:
        """Put a registry in force that is stored already."""
        before, self.registry = self.registry, registry
        if before.narrowings != registry.narrowings:
            self._apply_narrowings()
        if (before.gateway_entries, before.replica_entries) != (registry.gateway_entries, registry.replica_entries):
            self._apply_registry()
        for gateway_id, policy in changed_policies(before, registry).items():
            self.policy_changed(gateway_id, policy)
        if registry.freeze != before.freeze:
            freeze = registry.freeze
            self.driver.submit(FreezeLifted() if freeze is None else FreezeOrdered(freeze.reason))

    def _apply_narrowings(self) -> None:
        self.driver.submit(NarrowingApplied(tuple(self.registry.narrowings.values())))

    def _apply_registry(self) -> None:
        self._forget_down(self._down - self.registry.gateways.keys())
        self.driver.submit(RegistryApplied(self.registry.gateway_entries, self.registry.replica_entries))

    # Writes

    def _take(self, is_whole: bool) -> Written:
        """Take the state that a write contains as it begins: the state in force, or the one of the newest view where
        there is too much for one write."""
        owners, policies, records = self.core.owners, dict(self.core.policies), self._records
        if not is_whole and self.board.newest is not None:
            newest = self.board.newest
            owners, policies, records = dict(newest.owners), dict(newest.policies), newest.records

        def written(asked: Changes, version: ControlVersion) -> None:
            registry = self.registry.changed(asked) if asked else self.registry
            self.board.put(View(version, registry, owners, in_force(policies, registry), records))
            if registry is not self.registry:
                self._apply(registry)

        return written

    def _keep(self, effect: KeepOwners | KeepPolicy | TellCondition) -> None:
        if isinstance(effect, TellCondition):
            self._keep_condition(effect.gateway_id, effect.condition)
            return
        if isinstance(effect, KeepPolicy):
            self.store_writer.keep({documents.POLICY + effect.policy.place.region: encode(effect.policy)})
            return
        changes: Changes = {documents.OWNER + replica: owner.encode() for replica, owner in effect.owners}
        changes |= {documents.OWNER + replica: None for replica in effect.orphans}
        self.store_writer.keep(changes | {documents.ASSIGNMENT: str(effect.version).encode()})

    def _keep_condition(self, gateway_id: GatewayId, condition: Condition) -> None:
        """Store whether a gateway is down. A returning gateway counts as down until it is relied on."""
        if condition is Condition.DOWN and gateway_id not in self._down:
            self._down.add(gateway_id)
            self.store_writer.keep({documents.DOWN + gateway_id: b""})
        elif condition in (Condition.UP, Condition.ALONE):
            self._forget_down([gateway_id])

    def _forget_down(self, gateways: Iterable[GatewayId]) -> None:
        known = self._down.intersection(gateways)
        if known:
            self._down -= known
            self.store_writer.keep(dict.fromkeys(documents.DOWN + each for each in sorted(known)))

    def _name(self, tree: RecordTree) -> None:
        records = self.naming.dressed(tree, self._records, self._now_s)
        if records is not self._records:
            self._say(records)

    @property
    def _now_s(self) -> int:
        return self._wall_ns() // _SECOND_NS

    def _say(self, records: RecordTree) -> None:
        self._records = records
        self.store_writer.keep({documents.RECORDS: encode(records)})
        for publish in self._on_records:
            publish(records)


def in_force(
    policies: Mapping[RegionName, ResidencyPolicy], registry: Registry
) -> Mapping[RegionName, ResidencyPolicy]:
    """Return the policies in force: the regions' own, narrowed where the controller narrows them."""
    return {
        region: narrowed(own, registry.narrowings[region]) if region in registry.narrowings else own
        for region, own in policies.items()
    }


def changed_policies(before: Registry, after: Registry) -> dict[GatewayId, ResidencyPolicy]:
    """Return the regions' own policies by gateway, where a gateway announces another one than before."""
    return {
        gateway_id: said.policy
        for gateway_id, said in after.announced.items()
        if gateway_id not in before.announced or before.announced[gateway_id].policy != said.policy
    }


def records_in(contents: Mapping[str, bytes]) -> RecordTree | None:
    """Return the records stored last; None: none. Raises StoreUnusable."""
    text = contents.get(documents.RECORDS)
    return None if text is None else decode(documents.RECORDS, text, RecordTree)
