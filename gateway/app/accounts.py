"""Keys and usage that outlive the process: the keys file as operators change it, and usage rows as they are written to
disk.

No request waits for either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

from aiohttp import web
from structlog.typing import FilteringBoundLogger

from gateway.app.budgets import Budgets
from gateway.app.identities import Identities
from gateway.config.sections import GatewayConfig, UsageConfig
from gateway.door.admin_keys import KeysRefused, add_key_routes, add_usage_route
from gateway.records.peer_usage import BudgetName
from gateway.records.usage_book import Rows, UsageAmounts, UsageBook, UsageKey
from gateway.records.usage_store import UsageStore, UsageUnusable, days_before, usage_file
from gateway.request.callers import KeyId
from gateway.security.keyring import Keyring
from gateway.security.keys_editing import KeyUnknown, add_key, change_key, remove_key, rotate_key, shown
from mesh.clock import Clock
from mesh.faults import ConfigError
from mesh.operators import Operator, told_of
from mesh.reloader import ReloadRefused
from mesh.threads import finish_in_thread
from mesh.values import parse_duration_ns

_SECOND_NS = 1_000_000_000
_DAY_NS = 86_400 * _SECOND_NS
_ROWS_TOLD_MAX = 10_000
"""Rows in one message to another process."""
_Result = TypeVar("_Result")
TellUsed = Callable[[Rows, Mapping[BudgetName, int]], None]
"""Sends usage rows, and the budget reserved by running requests, to the process that has the store."""


class KeysAdmin:
    """Changes the keys file for operators at the admin address, and puts it in force at once."""

    def __init__(self, keyring: Keyring, clock: Clock, log: FilteringBoundLogger) -> None:
        self._keyring = keyring
        self._clock = clock
        self._log = log

    def list(self) -> list[Mapping[str, object]]:
        """Keys as shown to operators, each with the time of its last use in this process."""
        new, old = self._keyring.last_used_ns
        return [
            {
                **shown(entry),
                **_moment("last_used", new.get(KeyId(entry.id))),
                **_moment("old_last_used", old.get(KeyId(entry.id))),
            }
            for entry in self._keyring.file.keys
        ]

    async def add(self, options: Mapping[str, Any], by: Operator) -> Mapping[str, object]:
        key_id = options.get("id")
        if not isinstance(key_id, str):
            raise KeysRefused("id: is missing")
        rest = {name: value for name, value in options.items() if name != "id"}
        minted = await self._edit(lambda now_ns: add_key(self._keyring.path, key_id, rest, now_ns))
        self._log.warning("api_key_added", key=key_id, **told_of(by))
        return {"id": key_id, "key": minted.key}

    async def rotate(self, key_id: str, keep: str, by: Operator) -> Mapping[str, object]:
        try:
            keep_ns = 0 if keep == "0" else parse_duration_ns(keep)
        except ValueError as error:
            raise KeysRefused(f"keep: {error}") from error
        minted = await self._edit(lambda now_ns: rotate_key(self._keyring.path, key_id, keep_ns, now_ns))
        self._log.warning("api_key_rotated", key=key_id, **told_of(by))
        until = None if minted.old_until is None else minted.old_until.timestamp() * _SECOND_NS
        return {"id": key_id, "key": minted.key, **_moment("old_until", until)}

    async def change(self, key_id: str, options: Mapping[str, Any], by: Operator) -> Mapping[str, object]:
        await self._edit(lambda now_ns: change_key(self._keyring.path, key_id, options, now_ns))
        self._log.warning("api_key_changed", key=key_id, **told_of(by))
        return next(each for each in self.list() if each["id"] == key_id)

    async def remove(self, key_id: str, by: Operator) -> None:
        await self._edit(lambda _: remove_key(self._keyring.path, key_id))
        self._log.warning("api_key_removed", key=key_id, **told_of(by))

    async def _edit(self, edit: Callable[[int], _Result]) -> _Result:
        """Edit the keys file. The edit is written even if the caller disconnects, and is in force when this returns."""
        try:
            done = await finish_in_thread(edit, self._clock.wall_ns())
            await self._keyring.reload()
        except KeyUnknown as error:
            raise KeysRefused(str(error), 404) from error
        except (ConfigError, ReloadRefused) as error:
            raise KeysRefused(str(error)) from error
        return done


class UsageKeeper:
    """Records what clients used: in the book at once, and in the store soon after."""

    def __init__(self, config: UsageConfig, store: UsageStore, clock: Clock, log: FilteringBoundLogger) -> None:
        self.book = UsageBook()
        self.fault = ""
        """Reason why usage would not survive a restart; empty while it would."""
        self._config = config
        self._store = store
        self._clock = clock
        self._log = log
        self._forget_due_ns = clock.now_ns()
        self._is_open = False
        """The store belongs to this process."""
        self._tell: TellUsed | None = None
        """Sends usage to the process that has the store."""
        self._has_ended: Callable[[], bool] = lambda: False
        """Tells if that process has ended."""

    def begin(self) -> None:
        """Load usage before any request is served. A damaged file makes budgets count from zero, with an error in the
        log; a file that exists and cannot be read keeps keys with budgets refused until it can be."""
        self._open()
        self.book.others.remember(self._store.told())
        self.book.remember(self._store.since(self._month_begin), self._clock.wall_ns())

    def _open(self) -> None:
        self._is_open, self._tell = True, None
        try:
            self._store.open()
        except UsageUnusable as error:
            self.fault, self.book.is_unknown = str(error), error.hides_usage
            if error.hides_usage:
                self._log.error("usage_store_unreadable", reason=self.fault)
            elif self._store.is_apart:
                self._log.error("usage_store_unavailable", reason=self.fault)
            else:
                self._log.error("usage_store_reset", reason=self.fault)

    # A hand-over

    async def release(self) -> Mapping[BudgetName, int]:
        """Write all rows and close the store for another process. Later usage is held until `tell` or `take_back`.
        Returns the budget that running requests hold."""
        await self.flush()
        self._is_open = False
        await self._store.release()
        return self.book.held()

    def take_back(self) -> None:
        """Open the store again after `release`, when the other process is gone."""
        if not self._is_open:
            self._open()

    def tell(self, tell: TellUsed, has_ended: Callable[[], bool]) -> None:
        """Send usage to the process that has the store, after `release`. `tell` raises OSError when it cannot: rows are
        then held, and the store is taken back only once that process has ended."""
        self._tell, self._has_ended = tell, has_ended

    def take_over(self, rows: Rows, held: Mapping[BudgetName, int]) -> None:
        """Take over rows and held budgets of the process before."""
        self.book.take_over(rows, held, self._clock.wall_ns())

    async def _flush_elsewhere(self) -> None:
        if self._tell is not None:
            rows, tell = self.book.take_rows(), self._tell
            try:
                await finish_in_thread(_tell_all, tell, rows, self.book.held())
            except OSError as error:
                self._not_told(rows, error)
            except asyncio.CancelledError as cancelled:
                if isinstance(cancelled.__cause__, OSError):
                    self._not_told(rows, cancelled.__cause__)
                raise

    # Periodic writing

    @property
    def today(self) -> str:
        return f"{datetime.fromtimestamp(self._clock.wall_ns() // _SECOND_NS, UTC):%Y-%m-%d}"

    @property
    def _month_begin(self) -> str:
        return f"{self.today[:7]}-01"

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._config.flush_interval_ns / _SECOND_NS)
            await self.flush()
            await self._forget()

    async def _forget(self) -> None:
        """Delete rows older than `days_max`, once a day of the monotonic clock."""
        now_ns = self._clock.now_ns()
        if self.fault or not self._is_open or now_ns < self._forget_due_ns:
            return
        try:
            await self._store.forget_before(days_before(self.today, self._config.days_max))
        except OSError as error:
            self._log.error("usage_expiry_failed", reason=str(error))
        else:
            self._forget_due_ns = now_ns + _DAY_NS

    async def flush(self) -> None:
        """Write rows to the store; rows that cannot be written are kept, up to a bound, and tried again."""
        if not self._is_open:
            await self._flush_elsewhere()
            return
        await self._open_again()
        rows, told = self.book.take_rows(), self.book.others.take_unwritten()
        try:
            if rows:
                await self._store.add(rows)
                rows = {}
            if told:
                await self._store.keep_told(told)
        except OSError as error:
            self.book.give_back(rows)
            self.book.others.give_back(told)
            self._log.error("usage_write_failed", reason=str(error))
            self.fault = str(error)
        else:
            self._written()

    async def _open_again(self) -> None:
        """Load a file that could not be read at the start, once it can be: its rows, and the reports of other
        gateways."""
        found = await self._store.open_again(self._month_begin)
        if found is None:
            return
        rows, told = found
        self.book.remember(rows, self._clock.wall_ns())
        for (gateway, name), use in told.items():
            if gateway not in self.book.others.by_gateway(name):
                self.book.hear(gateway, use._replace(set_aside=0), self._clock.wall_ns())
        self.book.is_unknown = False

    def _written(self) -> None:
        if self.fault and not self._store.is_apart:
            self._log.warning("usage_store_recovered")
            self.fault = ""

    def notes(self) -> dict[str, str]:
        """Warnings for operators while the gateway is ready."""
        if not self.fault:
            return {}
        closed = "keys with budgets are refused: " if self.book.is_unknown else ""
        return {"usage": f"{closed}{self.fault}"}

    async def asked(self, first: str, last: str, by: str) -> tuple[list[tuple[UsageKey, UsageAmounts]], bool]:
        await self.flush()
        try:
            return await self._store.asked(first, last, by)
        except OSError as error:
            raise KeysRefused(str(error), 503) from error

    def close(self) -> None:
        """Write the last rows and close the store."""
        try:
            self._tell_the_last()
            if self._is_open:
                self._store.add_at_once(self.book.take_rows())
                self._store.keep_told_at_once(self.book.others.take_unwritten())
            elif rows := self.book.take_rows():
                self._log.error("usage_lost_at_exit", reason="another process has the file", rows=len(rows))
        except OSError as error:
            self._log.error("usage_lost_at_exit", reason=str(error))
        self._store.close()

    def _tell_the_last(self) -> None:
        if self._tell is None:
            return
        rows = self.book.take_rows()
        try:
            _tell_all(self._tell, rows, {})
        except OSError as error:
            self._not_told(rows, error)

    def _not_told(self, rows: dict[UsageKey, UsageAmounts], error: OSError) -> None:
        """Keep rows that could not be sent. The store is taken back only from a process that has ended: two processes
        that count would both be wrong."""
        self.book.give_back(rows)
        if self._has_ended():
            self.take_back()
        else:
            self._log.error("usage_handover_failed", reason=str(error))


class Accounts:
    """Operators' identities, clients' keys where they are needed, and usage."""

    def __init__(self, config: GatewayConfig, clock: Clock, log: FilteringBoundLogger) -> None:
        """Raises ConfigError."""
        file, folder = config.keys_file, config.state.folder
        self.keyring = None if file is None else Keyring(file, clock, keeps_usage=folder is not None)
        self.usage = UsageKeeper(config.usage, UsageStore(usage_file(folder, config.gateway_id)), clock, log)
        self.budgets = Budgets(self.usage.book, self.keyring, clock, is_failing=lambda: bool(self.usage.fault))
        self.identities = Identities(config, clock, log)
        self._admin = None if self.keyring is None else KeysAdmin(self.keyring, clock, log)

    def begin(self) -> None:
        """Load usage, budgets and issuers' keys before any request is served."""
        self.usage.begin()
        self.budgets.begin()
        self.identities.restore()

    def close(self) -> None:
        self.usage.close()

    def with_routes(self, admin: web.Application) -> web.Application:
        add_key_routes(admin, self._admin, are_asked=self.identities.operators.are_asked)
        add_usage_route(admin, self.usage)
        return admin


def _tell_all(tell: TellUsed, rows: dict[UsageKey, UsageAmounts], held: Mapping[BudgetName, int]) -> None:
    """Send rows in batches, removing those sent from `rows`. Raises OSError."""
    while True:
        some = dict(islice(rows.items(), _ROWS_TOLD_MAX))
        tell(some, held)
        for line in some:
            del rows[line]
        if not rows:
            return


def _moment(name: str, wall_ns: float | None) -> dict[str, object]:
    if wall_ns is None:
        return {}
    return {name: f"{datetime.fromtimestamp(wall_ns // _SECOND_NS, UTC):%Y-%m-%dT%H:%M:%SZ}"}
