from __future__ import annotations

import io

import msgspec
from rich.console import Console

from controller.ctl.status import print_status
from controller.problems import (
    GatewayView,
    NameView,
    OrphansView,
    RecordsView,
    ReplicaView,
    State,
    WantedView,
    problems,
)
from mesh.problems import RefusedFiles

US = GatewayView("us-1", "us-east-1", "US", "up", "", False, True, 2, (3, 9), (3, 9))
EU = GatewayView("eu-1", "eu-west-1", "EU", "down", "it does not answer in time", False, False, 0)
WELL = State(
    controller="ctl-1",
    term=3,
    version=9,
    not_ready_reason="",
    frozen="",
    store_fault="",
    history_fault="",
    gateways=[US],
    replicas=[ReplicaView("r0", "us-1", "us-1", "", False, False), ReplicaView("r1", "eu-1", "us-1", "", False, False)],
    orphans=[],
    narrowings={"us-east-1": "abc"},
    names=[NameView("us-east-1", ["us-1"], "")],
    faults=[],
)


def shown(state: State, *, with_replicas: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=120, highlight=False)
    print_status(state, [each.text for each in problems(state)], console, with_replicas=with_replicas)
    return stream.getvalue()


def test_nothing_is_wrong_where_all_is_well() -> None:
    assert not list(problems(WELL))
    page = shown(WELL)
    assert "1 gateways, 2 replicas, 1 of them away from home" in page
    assert "policy of us-east-1 narrowed by abc" in page
    assert "r1" in page
    assert "r0" not in page, "it is at home"
    assert "r0" in shown(WELL, with_replicas=True)


def test_what_regions_want_is_told_once_for_each() -> None:
    wants = msgspec.structs.replace(US, wanted=[WantedView("m", "default", 3, 2, "borrows")])
    beside = msgspec.structs.replace(wants, id="us-2", wanted=[WantedView("m", "default", 4, 2, "load")])
    page = shown(msgspec.structs.replace(WELL, gateways=[beside, wants]))
    assert "Replicas wanted" in page
    assert "borrows" in page
    assert "load" not in page, "the first one speaks for its region"
    assert "Replicas wanted" not in shown(WELL)


def test_whatever_is_wrong_is_named_worst_first() -> None:
    rejected = msgspec.structs.replace(US, rejected="no such section")
    ill = msgspec.structs.replace(
        WELL,
        not_ready_reason="the store is another controller's now",
        frozen="cables",
        store_fault="full",
        history_fault="x cannot be written",
        gateways=[rejected, EU, msgspec.structs.replace(EU, condition="up", detail="")],
        orphans=[OrphansView("eu-1", 4, "no other gateway lives")],
        names=[NameView("eu-west-1", [], "no gateway lives")],
        faults=["us-1: replica r0 is eu-1's already"],
    )
    assert [each.text for each in problems(ill)] == [
        "not ready: the store is another controller's now",
        "the store cannot be written, and nothing new is assigned: full",
        "frozen, automatic failover and reassignment are suspended: cables",
        "no gateway may serve 4 replicas of eu-1: no other gateway lives",
        "gateway us-1 rejected a snapshot: no such section",
        "gateway eu-1 is down: it does not answer in time",
        "gateway eu-1 is not attached",
        "DNS has no gateway for clients in eu-west-1: no gateway lives",
        "us-1: replica r0 is eu-1's already",
        "the operator audit log cannot be kept: x cannot be written",
    ]


def test_records_that_are_not_where_they_should_be_are_named() -> None:
    ill = msgspec.structs.replace(WELL, published_records=RecordsView(3, "no answer", "not on the internet"))
    assert [each.text for each in problems(ill)] == [
        "the newest records are not published: no answer",
        "the published records are not as they should be: not on the internet",
    ]
    well = msgspec.structs.replace(WELL, published_records=RecordsView(3, "", ""))
    assert not list(problems(well))


def test_a_gateway_whose_replicas_are_all_down_is_a_problem_and_one_that_has_some_is_none() -> None:
    ill = msgspec.structs.replace(US, replicas_served=2, replicas_down=2)
    (problem,) = problems(msgspec.structs.replace(WELL, gateways=[ill]))
    assert (problem.text, problem.subject) == ("gateway us-1 has no replica that answers: 2 of 2 are down", "us-1")
    some = msgspec.structs.replace(US, replicas_served=2, replicas_down=1)
    assert not list(problems(msgspec.structs.replace(WELL, gateways=[some])))


def test_a_file_that_is_refused_is_named_until_it_is_in_force() -> None:
    refused = RefusedFiles("controller", ("/etc/ctl.yaml",), ("ctl.yaml: line 3: colour: is not a known key",), 5_000)
    ill = msgspec.structs.replace(WELL, refused_files=(refused,))
    (problem,) = problems(ill)
    assert problem.line() == (
        "the changed file of controller (/etc/ctl.yaml) is refused, and the one before is in force: "
        "ctl.yaml: line 3: colour: is not a known key (since 1970-01-01T00:00:05Z)"
    )


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    odd = msgspec.structs.replace(WELL, gateways=[msgspec.structs.replace(US, id="[red]x[/red]")])
    assert "[red]x[/red]" in shown(odd)
