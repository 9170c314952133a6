from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.vocabulary import TenantName
from gateway.features.batches.sizes import FolderSizes

TENANTS = tuple(map(TenantName, ("acme", "zenith")))


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(TENANTS), st.one_of(st.none(), st.integers(0, 9)))))
def test_sums_are_those_of_the_files(steps: list[tuple[str, TenantName, int | None]]) -> None:
    sizes = FolderSizes()
    files: dict[str, tuple[TenantName, int]] = {}
    for file_id, tenant, size in steps:
        if size is None:
            sizes.drop(file_id)
            files.pop(file_id, None)
        else:
            sizes.put(file_id, tenant, size)
            files[file_id] = (tenant, size)
    assert sizes.total == sum(size for _, size in files.values())
    for tenant in TENANTS:
        own = [size for whose, size in files.values() if whose == tenant]
        assert (sizes.bytes_of(tenant), sizes.files_of(tenant)) == (sum(own), len(own))
    assert len(sizes._bytes) == len(sizes._counts) == len({tenant for tenant, _ in files.values()})
