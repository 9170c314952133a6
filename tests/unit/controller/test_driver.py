from __future__ import annotations

from controller.core import events
from controller.core.controller_core import ControllerCore
from controller.core.effects import KeepOwners, KeepPolicy, PublishRecords, StartRecovery, TellCondition
from controller.driver import ControllerDriver, ControllerSubscriptions
from gateway.core.vocabulary import GatewayId
from tests.support.clock import StillClock
from tests.support.controller import EU, SECOND, US, gateway, policy, replicas


async def test_each_effect_goes_to_whoever_performs_it() -> None:
    clock = StillClock()
    driver = ControllerDriver(ControllerCore(), clock)
    done: list[object] = []
    driver.on_keep(done.append)
    driver.on_records(done.append)
    driver.on_records(done.append)
    driver.on_recovery(done.append)
    driver.submit(events.RegistryApplied((gateway("us", US), gateway("eu", EU)), tuple(replicas("us", 1))))
    for name, place in (("us", US), ("eu", EU)):
        driver.submit(events.GatewayConnected(GatewayId(name), policy(place)))
    kinds = [type(each).__name__ for each in done]
    assert kinds.count("KeepPolicy") == 2
    assert kinds.count("KeepOwners") == 1
    assert kinds.count("RecordTree") == 2, "two have asked for it"
    done.clear()
    clock.now += SECOND
    driver.submit(events.GatewayDisconnected(GatewayId("us"), "gone"))
    for _ in range(3):
        driver.submit(events.GatewayProbed(GatewayId("us"), healthy=False))
    ordered = [type(each) for each in done if not isinstance(each, KeepOwners | KeepPolicy)]
    assert ordered[:2] == [TellCondition, StartRecovery], "who is down is written down as well"
    driver.close()


async def test_without_anybody_who_performs_them_effects_are_only_told() -> None:
    seen: list[object] = []

    class Sees:
        subscriptions: ControllerSubscriptions = {PublishRecords: lambda _, effect: seen.append(effect)}  # noqa: RUF012

    driver = ControllerDriver(ControllerCore(), StillClock(), observers=[Sees()])
    driver.submit(events.RegistryApplied((gateway("us", US),), ()))
    driver.tell_observers()
    assert len(seen) == 1
    driver.close()
