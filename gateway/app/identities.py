"""Token issuers of clients and operators. The module assembles the verifiers of their tokens, and decides nothing."""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from gateway.config.sections import GatewayConfig
from gateway.request.callers import ClientKey
from gateway.security.tokens import FOR_CLIENTS, ClientGrants
from mesh.clock import Clock
from mesh.supervisor import Supervisor
from mesh.tokens.issuer import Issuer, IssuerDependencies
from mesh.tokens.operators import FOR_OPERATORS, make_operators
from mesh.tokens.tokens import Tokens


class Identities:
    """Token issuers and verifiers of one gateway."""

    def __init__(self, config: GatewayConfig, clock: Clock, log: FilteringBoundLogger) -> None:
        """Raises ConfigError."""
        around = IssuerDependencies(config.gateway_id, config.state.folder, clock, log)
        self.counters = around.counters
        self.operators, of_operators = make_operators(config.admin_token, config.operators, around)
        self.client_tokens: Tokens[ClientKey] | None = None
        """Verifier of clients' tokens; None where clients use keys or no credentials."""
        of_clients = around.issuers(FOR_CLIENTS, config.oidc.issuers)
        if of_clients:
            grants = ClientGrants(config.oidc, clock)
            self.client_tokens = Tokens(FOR_CLIENTS, of_clients, grants.grant, clock=clock, counters=around.counters)
        self._issuers = {FOR_CLIENTS: of_clients, FOR_OPERATORS: of_operators}

    @property
    def issuers(self) -> list[Issuer]:
        return [each for issuers in self._issuers.values() for each in issuers]

    def restore(self) -> None:
        for each in self.issuers:
            each.restore()

    def run(self, loops: Supervisor) -> None:
        """Run the issuers' loops. Start-up waits for no issuer: one that does not answer is asked again."""
        for use, issuers in self._issuers.items():
            for each in issuers:
                loops.run(f"issuer_{use}_{each.config.name}", each.run)

    def describe(self) -> dict[str, object]:
        return {use: {each.config.name: each.describe() for each in issuers} for use, issuers in self._issuers.items()}
