from __future__ import annotations

from pathlib import Path

from gateway.config.sections import GatewayConfig, ListenConfig
from gateway.core.vocabulary import GatewayId
from gateway.security.tls import Certificates
from mesh.clock import Clock
from mesh.values import Address
from tests.support.certificates import Files, clients_leaf, new_ca
from tests.support.core import US

ANY = Address("127.0.0.1", 0)


def test_dates_at_the_start_are_told_and_no_fault(tmp_path: Path) -> None:
    own = Files(tmp_path / "own")
    config = GatewayConfig(
        gateway_id=GatewayId("us-1"),
        place=US,
        listen=ListenConfig(ANY, ANY, ANY, own.listen()),
        policy_file=None,
        replicas=(),
        peers=(),
    )
    for days, faults in ((1, []), (-1, [f"{own.certificate}: the certificate has expired"])):
        own.put(clients_leaf(new_ca(), days=days))
        assert Certificates(config, Clock()).date_faults() == faults
