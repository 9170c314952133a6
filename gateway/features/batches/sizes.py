"""Sizes of the files in the folder of batches, with running sums: a check of a limit scans no list."""

from __future__ import annotations

from gateway.core.vocabulary import TenantName


class FolderSizes:
    """Sizes of files, uploads and growing results by id. There is one entry for each file in the folder."""

    def __init__(self) -> None:
        self.total = 0
        """Bytes of all tenants' files."""
        self._files: dict[str, tuple[TenantName, int]] = {}
        self._bytes: dict[TenantName, int] = {}
        self._counts: dict[TenantName, int] = {}

    def put(self, file_id: str, tenant: TenantName, size: int) -> None:
        """Take in a file, or its new size."""
        self.drop(file_id)
        self._files[file_id] = (tenant, size)
        self._add(tenant, size, 1)

    def drop(self, file_id: str) -> None:
        """Forget a file; an unknown one changes nothing."""
        if (known := self._files.pop(file_id, None)) is not None:
            self._add(known[0], -known[1], -1)

    def _add(self, tenant: TenantName, size: int, files: int) -> None:
        self.total += size
        self._bytes[tenant] = self._bytes.get(tenant, 0) + size
        self._counts[tenant] = self._counts.get(tenant, 0) + files
        if not self._counts[tenant]:
            del self._counts[tenant], self._bytes[tenant]

    def bytes_of(self, tenant: TenantName) -> int:
        return self._bytes.get(tenant, 0)

    def files_of(self, tenant: TenantName) -> int:
        return self._counts.get(tenant, 0)
