"""Keys in force: read at the start, read again when the file changes, and looked up for each request.

A file that cannot be used never replaces one that could.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway.core.vocabulary import TenantName
from gateway.request.callers import NO_BUDGET, Budget, ClientKey, KeyId
from gateway.security.keys import KeysFile, KeyTable, read_keys_file
from mesh.clock import Clock
from mesh.faults import ConfigError, FileError
from mesh.reloader import ReloadRefused


class Keyring:
    """Client keys and budgets of one keys file. `check` is a KeyCheck, and `tenant_budget` a TenantBudget."""

    def __init__(self, path: Path, clock: Clock, *, keeps_usage: bool = True) -> None:
        """Read the file. `keeps_usage` says that usage outlives the process; without it no key may have a budget.
        Raises ConfigError, for there are no earlier keys to keep."""
        self.path = path
        self._clock = clock
        self._keeps_usage = keeps_usage
        self._last_used: dict[KeyId, int] = {}
        self._old_last_used: dict[KeyId, int] = {}
        self._on_change: Callable[[], None] = lambda: None
        self._put(self._read())

    def check(self, credential: str) -> ClientKey | None:
        wall_ns = self._clock.wall_ns()
        found = self._table.find(credential, wall_ns)
        if found is None:
            return None
        used = self._old_last_used if found.is_old else self._last_used
        used[found.key.key_id] = wall_ns
        return found.key

    def in_force(self, key_id: KeyId) -> ClientKey | None:
        """Key of that id as it stands now; None if it was removed or has expired. It proves nothing of a client."""
        return self._table.valid(key_id, self._clock.wall_ns())

    def tenant_budget(self, tenant: TenantName) -> Budget:
        return self._tenant_budgets.get(tenant, NO_BUDGET)

    def budgets(self) -> dict[tuple[str, str], tuple[Budget, TenantName]]:
        """Budgets, each with its tenant, by kind ("key" or "tenant") and name."""
        keys = (entry.client_key() for entry in self._file.keys)
        of_keys = (("key", str(key.key_id), key.budget, key.tenant) for key in keys)
        of_tenants = (("tenant", str(tenant), budget, tenant) for tenant, budget in self._tenant_budgets.items())
        return {
            (kind, name): (budget, tenant)
            for kind, name, budget, tenant in (*of_keys, *of_tenants)
            if budget is not NO_BUDGET
        }

    def follow(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` each time that the keys have changed."""
        self._on_change = on_change

    @property
    def file(self) -> KeysFile:
        """Content of the file that is in force."""
        return self._file

    @property
    def last_used_ns(self) -> tuple[Mapping[KeyId, int], Mapping[KeyId, int]]:
        """Wall time at which each key was last used since the process started: by its secret, and by its previous
        secret."""
        return self._last_used, self._old_last_used

    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    async def reload(self) -> None:
        """Read the file again; called by the Reloader. Running requests keep what their key allowed when they came."""
        try:
            self._put(await asyncio.to_thread(self._read))
        except ConfigError as error:
            raise ReloadRefused(str(error)) from error

    def _read(self) -> KeysFile:
        return read_keys(self.path, keeps_usage=self._keeps_usage)

    def _put(self, file: KeysFile) -> None:
        self._file = file
        self._table = KeyTable(file.keys)
        self._tenant_budgets = {TenantName(each.id): each.budget() for each in file.tenants}
        known = {KeyId(entry.id) for entry in file.keys}
        for used in (self._last_used, self._old_last_used):
            for key_id in used.keys() - known:
                del used[key_id]
        self._on_change()


def read_keys(path: Path, *, keeps_usage: bool) -> KeysFile:
    """Read and check the keys file. Raises ConfigError."""
    file = read_keys_file(path)
    if not keeps_usage and (faults := list(file.budget_faults())):
        raise FileError(path, faults)
    return file
