"""Virtual token counters: the tokens that each tenant has been served by this gateway, by which queues are shared.

Implements the Virtual Token Counter of Sheng et al. (OSDI 2024): of the tenants that wait, the one served least is
next, and a tenant that returns after having no requests gets no credit for its absence. The output of a request is
charged when it starts, at the average of its tenant's recent answers (their §4.4), and corrected when it ends. The
module counts and places no request.
"""

from __future__ import annotations

from typing import Final

from gateway.core.features.sharing.config import SharingConfig
from gateway.core.kernel.requests import RequestState
from gateway.core.tenant_config import TenantConfig, tenant_in
from gateway.core.value import value
from gateway.core.vocabulary import RequestProfile, TenantName

OTHERS: Final = TenantName("(others)")
"""Name of the account that tenants share once there are more than are counted one by one. No tenant is called that."""
_BYTES_A_TOKEN: Final = 4
_LENGTH_KEEPS: Final = 0.9
"""Weight of the average output length against one more answer: about the last ten make the average."""
_LOOKED_AT_MAX: Final = 64
_LATELY_NS: Final = 60_000_000_000
"""Time for which a tenant counts in the division of running requests after its last request arrived or ended."""
_FLOOD_MIN: Final = 2
"""Running requests below which no tenant counts as running more than its share, however many tenants there are."""


class Account:
    """Counter and figures of one tenant."""

    __slots__ = (
        "counter",
        "input_tokens",
        "name",
        "open",
        "output_mean",
        "output_tokens",
        "priority",
        "waiting",
        "weight",
    )

    def __init__(self, name: TenantName, config: TenantConfig) -> None:
        self.name = name
        self.weight = config.weight
        self.priority = config.priority
        self.counter = 0.0
        """Weighted tokens served or charged in advance, divided by the tenant's weight; raised, never lowered, when the
        tenant returns."""
        self.waiting = 0
        self.open = 0
        """Requests that wait or run."""
        self.output_mean = 0.0
        """Average length of its recent answers in tokens; 0: none yet."""
        self.input_tokens = 0
        self.output_tokens = 0
        """Tokens served in all: of prompts, and of answers."""


class Charge:
    """Charge of one request: the estimate when it started, and what was counted since."""

    __slots__ = (
        "account",
        "input_tokens",
        "is_counted",
        "output_tokens",
        "read_tokens",
        "was_read",
        "written_tokens",
    )

    def __init__(self, account: Account) -> None:
        self.account = account
        self.input_tokens = self.output_tokens = 0
        """Tokens charged to the account's counter at present."""
        self.is_counted = False
        """True once the request was started, which charged its estimate."""
        self.was_read = False
        """True if a target ran the request, at least in part."""
        self.read_tokens = 0
        """Prompt tokens by an engine's count; 0: none was reported."""
        self.written_tokens = 0
        """Output tokens of all legs that generated a part of the answer."""


def charge_of(request: RequestState) -> Charge:
    charge = request.queue_part
    assert isinstance(charge, Charge), "each waiting request has an account"
    return charge


@value
class TenantShare:
    """Figures of one tenant, for metrics and operators."""

    counter: float
    waiting: int
    open: int
    input_tokens: int
    output_tokens: int


class FairShares:
    """Accounts of all tenants of one gateway."""

    def __init__(self) -> None:
        self._config = SharingConfig()
        self._tenants: dict[TenantName, TenantConfig] = {}
        self._accounts: dict[TenantName, Account] = {}
        self.waiting: dict[TenantName, Account] = {}
        """Accounts of the tenants with waiting requests."""
        self._last: Account | None = None
        """Account of the last tenant whose queue drained."""
        self.top_priority = 0
        """Highest configured priority; aging raises no request above it."""
        self.may_yield = False
        """A tenant above its share leaves room for others."""
        self.forgotten = 0
        self.now_ns = 0
        self.recent_until_ns = 0
        """Time up to which no tenant is to be dropped from the recent ones, so that `now_ns` may be set alone."""
        self._lately: dict[TenantName, int] = {}
        """Tenants with open requests, or whose last one arrived or ended within `_LATELY_NS`, with the time; oldest
        first."""
        self._lately_weight = 0.0
        """Sum of the weights of those tenants."""
        self.running = 0
        """Requests of all tenants that are open and do not wait."""

    # Changes

    def configure(self, config: SharingConfig, tenants: dict[TenantName, TenantConfig]) -> None:
        """Apply new settings. Weights hold for tokens charged from here on."""
        self._config, self._tenants = config, tenants
        self.top_priority = max((each.priority for each in tenants.values()), default=0)
        self.may_yield = config.yields_above is not None
        for account in self._accounts.values():
            told = tenant_in(tenants, account.name)
            account.weight, account.priority = told.weight, told.priority
        self._lately_weight = sum(self._accounts[name].weight for name in self._lately)
        while len(self._accounts) > config.tenants_max and self._forget_one():
            pass

    def opened(self, tenant: TenantName) -> Charge:
        """Open a request and return its charge. The counter of its tenant is raised to the least of the tenants that
        wait, or to that of the tenant that waited last (Algorithm 2 of the paper, lines 8 to 15)."""
        account = self._accounts.get(tenant if self._config.fair else OTHERS)
        if account is None:
            account = self._make(tenant)
        if not account.waiting:
            self._lift(account)
        account.open += 1
        self.running += 1
        self._seen(account)
        return Charge(account)

    def _seen(self, account: Account) -> None:
        """Note that the tenant has, or just had, a request."""
        if self._lately.pop(account.name, None) is None:
            self._lately_weight += account.weight
        self._lately[account.name] = self.now_ns

    def begin(self, now_ns: int) -> None:
        """Set the time, and drop tenants without requests whose last one was too long ago from the recent ones."""
        self.now_ns = self.recent_until_ns = now_ns
        while self._lately:
            name, seen_ns = next(iter(self._lately.items()))
            if seen_ns >= now_ns - _LATELY_NS:
                self.recent_until_ns = seen_ns + _LATELY_NS
                return
            account = self._accounts[name]
            self._unseen(account)
            if account.open:
                self._seen(account)

    def _unseen(self, account: Account) -> None:
        if self._lately.pop(account.name, None) is not None:
            self._lately_weight = self._lately_weight - account.weight if self._lately else 0.0

    def _lift(self, account: Account) -> None:
        if self.waiting:
            least = min([each.counter for each in self.waiting.values()])
            account.counter = max(account.counter, least)
        elif self._last is not None and self._last.counter > account.counter:
            account.counter = self._last.counter

    def _make(self, tenant: TenantName) -> Account:
        """Make an account for a tenant, first forgetting idle ones over the limit. Where none can be forgotten, the
        tenant shares the account of the others, which does not count towards the limit."""
        is_told_apart = self._config.fair
        while is_told_apart and len(self._accounts) - (OTHERS in self._accounts) >= self._config.tenants_max:
            is_told_apart = self._forget_one()
        return self._add(tenant) if is_told_apart else self._accounts.get(OTHERS) or self._add(OTHERS)

    def _add(self, tenant: TenantName) -> Account:
        account = self._accounts[tenant] = Account(tenant, tenant_in(self._tenants, tenant))
        return account

    def _forget_one(self) -> bool:
        """Forget one account without requests; False if none of those looked at is idle. A tenant that returns is
        raised like any other, so that nothing is gained by being forgotten."""
        for _ in range(min(_LOOKED_AT_MAX, len(self._accounts))):
            account = next(iter(self._accounts.values()))
            del self._accounts[account.name]
            if not account.open:
                self._unseen(account)
                self.forgotten += 1
                return True
            self._accounts[account.name] = account  # moved to the end: others are looked at first next time
        return False

    def joined(self, account: Account) -> None:
        account.waiting += 1
        self.running -= 1
        if account.waiting == 1:
            self.waiting[account.name] = account

    def left(self, account: Account) -> None:
        account.waiting -= 1
        self.running += 1
        if not account.waiting:
            del self.waiting[account.name]
            self._last = account

    def started(self, charge: Charge, profile: RequestProfile, prompt_tokens: int) -> None:
        """Charge the estimate of a request, once however often it is tried. `prompt_tokens`: 0 where no estimate was
        made."""
        if charge.is_counted or profile.is_control:
            return
        charge.is_counted = True
        output_tokens = int(charge.account.output_mean)
        if profile.output_tokens_max is not None:
            output_tokens = min(output_tokens, profile.output_tokens_max)
        input_tokens = prompt_tokens or profile.prompt_bytes // _BYTES_A_TOKEN
        self._charge(charge, max(1, input_tokens), output_tokens)

    def progressed(self, charge: Charge, output_tokens: int) -> None:
        """Charge output tokens beyond the estimate as soon as they are reported."""
        if output_tokens > charge.output_tokens:
            self._charge(charge, charge.input_tokens, output_tokens)

    def ended(self, charge: Charge, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Record what a target counted when a leg ended."""
        charge.was_read = True
        charge.read_tokens = charge.read_tokens or prompt_tokens or 0
        charge.written_tokens += output_tokens or 0

    def closed(self, charge: Charge) -> None:
        """Close a request: what was counted replaces the estimate. A request that no target ran costs nothing."""
        account = charge.account
        account.open -= 1
        self.running -= 1
        self._seen(account)
        if not charge.is_counted:
            return
        input_tokens = (charge.read_tokens or charge.input_tokens) if charge.was_read else 0
        self._charge(charge, input_tokens, charge.written_tokens)
        account.input_tokens += input_tokens
        account.output_tokens += charge.written_tokens
        if charge.written_tokens:
            keeps = _LENGTH_KEEPS if account.output_mean else 0.0
            account.output_mean = keeps * account.output_mean + (1 - keeps) * charge.written_tokens

    def _charge(self, charge: Charge, input_tokens: int, output_tokens: int) -> None:
        """Replace what a request is charged, and move its account's counter by the difference."""
        weighed = self._config.input_weight * (input_tokens - charge.input_tokens)
        weighed += self._config.output_weight * (output_tokens - charge.output_tokens)
        charge.account.counter += weighed / charge.account.weight
        charge.input_tokens, charge.output_tokens = input_tokens, output_tokens

    # Queries

    @property
    def are_contested(self) -> bool:
        """True if more than one tenant has waiting requests."""
        return len(self.waiting) > 1

    def leaves_room(self, account: Account) -> bool:
        """True if the tenant's part of the running requests is so far above its share by weight, among recent tenants,
        that it must leave room for the others."""
        above, running = self._config.yields_above, account.open - account.waiting
        if above is None or running < _FLOOD_MIN or len(self._lately) < 2:
            return False
        return running * self._lately_weight > above * account.weight * self.running

    @property
    def slack(self) -> int:
        return self._config.prefix_slack_tokens

    def priority_of(self, account: Account, arrived_ns: int, now_ns: int) -> int:
        """Priority of a waiting request, which rises with time up to the highest configured one."""
        if not self.top_priority:
            return 0
        return min(self.top_priority, account.priority + (now_ns - arrived_ns) // self._config.aging_ns)

    def figures(self) -> dict[TenantName, TenantShare]:
        return {
            each.name: TenantShare(each.counter, each.waiting, each.open, each.input_tokens, each.output_tokens)
            for each in self._accounts.values()
        }

    @property
    def size(self) -> int:
        return len(self._accounts)

    @property
    def size_max(self) -> int:
        return self._config.tenants_max + 1

    def __contains__(self, account: Account) -> bool:
        return self._accounts.get(account.name) is account
