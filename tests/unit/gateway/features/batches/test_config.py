from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.features.batches.config import BatchesConfig, S3Config
from gateway.features.batches.opening import check_batches
from mesh.faults import ConfigError
from mesh.postgresql_config import PostgresqlConfig
from mesh.values import SECOND_NS, Address

FOLDER, S3 = Path("batches"), S3Config("bucket", "nightside/")
LOCAL = PostgresqlConfig((Address("127.0.0.1", 5432),), tls=False)
FAR = PostgresqlConfig((Address("10.0.0.5", 5432),))


class File:
    """Region file around the section."""

    insecure = False
    keeps_state = True

    def served_whole(self) -> set[tuple[str, str]]:
        return set()


@pytest.mark.parametrize(
    ("config", "is_on"),
    [
        (BatchesConfig(), False),
        (BatchesConfig(folder=FOLDER), True),
        (BatchesConfig(folder=FOLDER, postgresql=LOCAL), True),
        (BatchesConfig(postgresql=FAR, s3=S3), True),
        (BatchesConfig(postgresql=FAR, s3=replace(S3, endpoint="https://s3.example.net")), True),
        (BatchesConfig(postgresql=FAR, s3=replace(S3, endpoint="http://127.0.0.1:9000")), True),
    ],
)
def test_places_of_state_and_files_go_together(config: BatchesConfig, is_on: bool) -> None:
    assert list(config.faults(File())) == []
    assert config.is_on is is_on


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (BatchesConfig(postgresql=LOCAL), "batches.folder"),
        (BatchesConfig(s3=S3), "batches.folder"),
        (BatchesConfig(folder=FOLDER, postgresql=LOCAL, s3=S3), "batches.folder"),
        (BatchesConfig(folder=FOLDER, s3=S3), "batches.s3"),
        (BatchesConfig(postgresql=LOCAL, s3=replace(S3, prefix="")), "batches.s3.prefix"),
        (BatchesConfig(postgresql=LOCAL, s3=replace(S3, prefix="/")), "batches.s3.prefix"),
        (BatchesConfig(postgresql=LOCAL, s3=replace(S3, prefix="night")), "batches.s3.prefix"),
        (BatchesConfig(postgresql=LOCAL, s3=replace(S3, endpoint="http://s3.example.net")), "batches.s3.endpoint"),
        (BatchesConfig(postgresql=LOCAL, s3=replace(S3, endpoint="s3.example.net")), "batches.s3.endpoint"),
        (BatchesConfig(folder=FOLDER, postgresql=PostgresqlConfig(())), "batches.postgresql.hosts"),
        (BatchesConfig(folder=FOLDER, postgresql=PostgresqlConfig(FAR.hosts, tls=False)), "batches.postgresql.tls"),
        (
            BatchesConfig(folder=FOLDER, postgresql=PostgresqlConfig(FAR.hosts, password_file=Path("/nowhere"))),
            "batches.postgresql.password_file",
        ),
        (BatchesConfig(folder=FOLDER, lease_ns=SECOND_NS - 1), "batches.lease"),
    ],
)
def test_faults_name_their_key(config: BatchesConfig, key: str) -> None:
    assert [each.key for each in config.faults(File())] == [key]


def test_a_bundle_that_cannot_be_read_is_a_fault() -> None:
    check_batches(BatchesConfig(postgresql=FAR, s3=S3))
    with pytest.raises(ConfigError, match=r"batches\.postgresql\.ca_file: /nowhere cannot be read"):
        check_batches(BatchesConfig(postgresql=PostgresqlConfig(FAR.hosts, ca_file=Path("/nowhere")), s3=S3))


def test_the_password_is_a_secret_file() -> None:
    secret = Path("secret")
    config = BatchesConfig(folder=FOLDER, postgresql=PostgresqlConfig(FAR.hosts, password_file=secret))
    assert list(config.secret_files()) == [secret]
    assert list(BatchesConfig(folder=FOLDER).secret_files()) == []
