"""What each tenant has had of this gateway, in tokens: the counters by which queues are shared between tenants.

That is the Virtual Token Counter of Sheng et al. (OSDI 2024): whoever waits and had least is served next; who comes
back from having nothing here gets no credit for that. What a request will write is reckoned with when it starts, as its
tenant's answers were long before (their §4.4), and put right when it ends. It counts, and places nobody.
"""

from __future__ import annotations

from typing import Final

from gateway.core.sharing_config import SharingConfig, TenantConfig, tenant_in
from gateway.core.value import value
from gateway.core.vocabulary import RequestProfile, TenantName

OTHERS: Final = TenantName("(others)")
"""Share a counter, where there are more tenants than are told apart. No tenant is called that."""
_BYTES_A_TOKEN: Final = 4
_LENGTH_KEEPS: Final = 0.9
"""Of the average answer, when one more comes: the last ten make it."""
_LOOKED_AT_MAX: Final = 64
_LATELY_NS: Final = 60_000_000_000
"""Whoever came or left since then counts, where what runs is shared out."""
_FLOOD_MIN: Final = 2
"""Of so few requests that run nobody's are a flood, however many share."""


class Account:
    """One tenant's."""

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
        """What it had or was taken to be about to have, weighed and divided by its weight; lifted, never lowered, when
        it comes back."""
        self.waiting = 0
        self.open = 0
        """Requests, waiting or running."""
        self.output_mean = 0.0
        """How long its answers were of late; 0: there were none."""
        self.input_tokens = 0
        self.output_tokens = 0
        """What it was served in all."""


class Charge:
    """What one request was taken to come to when it started, and what has come of it."""

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
        """That the counter has."""
        self.is_counted = False
        """It was started once: what it comes to counts."""
        self.was_read = False
        """Somebody ran it, at least in part."""
        self.read_tokens = 0
        """Of the prompt, as an engine counted; 0: none has told."""
        self.written_tokens = 0
        """By all who wrote a part of the answer."""


@value
class TenantShare:
    """For metrics and operators."""

    counter: float
    waiting: int
    open: int
    input_tokens: int
    output_tokens: int


class FairShares:
    """All tenants' of one gateway."""

    def __init__(self) -> None:
        self._config = SharingConfig()
        self._tenants: dict[TenantName, TenantConfig] = {}
        self._accounts: dict[TenantName, Account] = {}
        self.waiting: dict[TenantName, Account] = {}
        """Those who have somebody waiting."""
        self._last: Account | None = None
        """Who was the last to have nobody waiting any more."""
        self.top_priority = 0
        """The highest that is configured: nobody rises above it."""
        self.forgotten = 0
        self.now_ns = 0
        self._lately: dict[TenantName, int] = {}
        """Whose requests came or ended of late, and when, the least lately first."""
        self._lately_weight = 0.0
        """Of all of those."""
        self.running = 0
        """Requests that do not wait, of all tenants."""

    # Changes

    def configure(self, config: SharingConfig, tenants: dict[TenantName, TenantConfig]) -> None:
        """Weights hold for what is charged from now on."""
        self._config, self._tenants = config, tenants
        self.top_priority = max((each.priority for each in tenants.values()), default=0)
        for account in self._accounts.values():
            told = tenant_in(tenants, account.name)
            account.weight, account.priority = told.weight, told.priority
        self._lately_weight = sum(self._accounts[name].weight for name in self._lately)
        while len(self._accounts) > config.tenants_max and self._forget_one():
            pass

    def opened(self, tenant: TenantName) -> Charge:
        """A request has come: its tenant starts no further back than whoever waits, or waited last (their Algorithm 2,
        lines 8 to 15)."""
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
        """It is here."""
        if self._lately.pop(account.name, None) is None:
            self._lately_weight += account.weight
        self._lately[account.name] = self.now_ns

    def begin(self, now_ns: int) -> None:
        """It is this late: whoever has nothing here and was here last more than a while ago counts no more."""
        self.now_ns = now_ns
        while self._lately:
            name, seen_ns = next(iter(self._lately.items()))
            if seen_ns >= now_ns - _LATELY_NS:
                return
            account = self._accounts[name]
            self._unseen(account)
            if account.open:
                self._seen(account)
        self._lately_weight = 0.0

    def _unseen(self, account: Account) -> None:
        if self._lately.pop(account.name, None) is not None:
            self._lately_weight -= account.weight

    def _lift(self, account: Account) -> None:
        if self.waiting:
            least = min([each.counter for each in self.waiting.values()])
            account.counter = max(account.counter, least)
        elif self._last is not None and self._last.counter > account.counter:
            account.counter = self._last.counter

    def _make(self, tenant: TenantName) -> Account:
        """Each one that is forgotten may have been the account of the others, which is none of those told apart."""
        is_told_apart = self._config.fair
        while is_told_apart and len(self._accounts) - (OTHERS in self._accounts) >= self._config.tenants_max:
            is_told_apart = self._forget_one()
        return self._add(tenant) if is_told_apart else self._accounts.get(OTHERS) or self._add(OTHERS)

    def _add(self, tenant: TenantName) -> Account:
        account = self._accounts[tenant] = Account(tenant, tenant_in(self._tenants, tenant))
        return account

    def _forget_one(self) -> bool:
        """Of those with nothing here: when they come back they are lifted like anybody, and nothing is given away."""
        for _ in range(min(_LOOKED_AT_MAX, len(self._accounts))):
            account = next(iter(self._accounts.values()))
            del self._accounts[account.name]
            if not account.open:
                self._unseen(account)
                self.forgotten += 1
                return True
            self._accounts[account.name] = account  # next time others are looked at first
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
        """Once for each request, however often it is tried. `prompt_tokens`: 0 where nobody has reckoned."""
        if charge.is_counted or profile.is_control:
            return
        charge.is_counted = True
        output_tokens = int(charge.account.output_mean)
        if profile.output_tokens_max is not None:
            output_tokens = min(output_tokens, profile.output_tokens_max)
        input_tokens = prompt_tokens or profile.prompt_bytes // _BYTES_A_TOKEN
        self._charge(charge, max(1, input_tokens), output_tokens)

    def progressed(self, charge: Charge, output_tokens: int) -> None:
        """So long it is already: more than was reckoned with is charged at once."""
        if output_tokens > charge.output_tokens:
            self._charge(charge, charge.input_tokens, output_tokens)

    def ended(self, charge: Charge, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Somebody ran it, or a part of it."""
        charge.was_read = True
        charge.read_tokens = charge.read_tokens or prompt_tokens or 0
        charge.written_tokens += output_tokens or 0

    def closed(self, charge: Charge) -> None:
        """The request is over: what was reckoned with becomes what it came to; what nobody ran costs nothing."""
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
        """From now on it counts for so much, in place of what it counted for."""
        weighed = self._config.input_weight * (input_tokens - charge.input_tokens)
        weighed += self._config.output_weight * (output_tokens - charge.output_tokens)
        charge.account.counter += weighed / charge.account.weight
        charge.input_tokens, charge.output_tokens = input_tokens, output_tokens

    # Queries

    @property
    def are_contested(self) -> bool:
        """Does more than one tenant have somebody waiting?"""
        return len(self.waiting) > 1

    def leaves_room(self, account: Account) -> bool:
        """Does it run so much of what runs that others, who came of late, should find room?"""
        above, running = self._config.yields_above, account.open - account.waiting
        if above is None or running < _FLOOD_MIN or len(self._lately) < 2:
            return False
        return running * self._lately_weight > above * account.weight * self.running

    @property
    def slack(self) -> int:
        return self._config.prefix_slack_tokens

    def priority_of(self, account: Account, arrived_ns: int, now_ns: int) -> int:
        """It rises while its request waits, up to the highest that there is."""
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
