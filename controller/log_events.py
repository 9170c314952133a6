"""Registry of the controller's log events, beside those that it shares with gateways."""

from __future__ import annotations

from mesh.log_events import SHARED, LogEvent

CONTROLLER = (
    LogEvent(
        "dns_records_drift_corrected",
        ("warning",),
        ("changed",),
        "DNS records at the provider differed from what was published, and are corrected.",
        "Find out what else writes these records.",
    ),
    LogEvent(
        "dns_records_propagation_unconfirmed",
        ("warning",),
        ("version", "reason"),
        "The provider accepted the DNS records, but does not confirm that all its servers answer from them.",
        "Check the provider's status if this lasts.",
    ),
    LogEvent(
        "dns_records_publish_failed",
        ("error",),
        ("version", "reason"),
        "DNS records could not be published, and the ones before stay in force.",
        "Correct what `reason` names, such as credentials or rights at the provider; a transient failure is retried.",
    ),
    LogEvent("dns_records_published", ("info",), ("version", "regions"), "DNS records are published at the provider."),
    LogEvent(
        "dns_records_updated", ("info",), ("records",), "DNS records changed: each region's name has new gateways."
    ),
    LogEvent(
        "failover_frozen",
        ("error",),
        ("reason",),
        "Automatic failover and reassignment are suspended.",
        "See `reason`; resume with `nightside ctl unfreeze` once every gateway that seems down is known to be down.",
    ),
    LogEvent("failover_unfrozen", ("info",), (), "Automatic failover and reassignment are resumed."),
    LogEvent(
        "gateway_alone",
        ("info",),
        ("gateway", "reason"),
        "A gateway that returns is all that its region's clients have. They are led to it, and it has its own "
        "replicas, while it is watched.",
    ),
    LogEvent(
        "gateway_announcement_refused",
        ("error",),
        ("gateway", "reason"),
        "A gateway's announcement of its place, replicas or policy is refused.",
        "Correct the region file of that gateway, or its entry in the controller's file.",
    ),
    LogEvent(
        "gateway_attach_refused",
        ("error",),
        ("caller", "reason"),
        "A caller may not attach to this controller.",
        "Check the certificate and the configuration of the gateway at that address.",
    ),
    LogEvent("gateway_attached", ("info",), ("gateway", "region"), "A gateway has attached to this controller."),
    LogEvent(
        "gateway_detached",
        ("info",),
        ("gateway", "reason"),
        "The stream of a gateway has ended.",
        "Check the gateway and its network if it does not attach again.",
    ),
    LogEvent(
        "gateway_down",
        ("error",),
        ("gateway", "reason"),
        "A gateway is declared down; its replicas are reassigned unless failover is frozen or no gateway may take "
        "them.",
        "Restart the gateway, or repair its host or network.",
    ),
    LogEvent(
        "gateway_rejected_snapshot",
        ("warning",),
        ("gateway", "version", "reason"),
        "A gateway rejected a snapshot, and continues with the one before.",
        "Correct what `reason` names, in the region file of that gateway or the controller's file.",
    ),
    LogEvent(
        "gateway_returning",
        ("info",),
        ("gateway", "reason"),
        "A gateway answers again after it was down, and is watched before it gets its replicas back.",
    ),
    LogEvent(
        "gateway_stream_replaced",
        ("info",),
        ("gateway", "reason"),
        "A gateway has opened a new stream, which replaces the one before.",
    ),
    LogEvent("gateway_up", ("info",), ("gateway", "reason"), "A gateway is up."),
    LogEvent(
        "last_decisions_not_persisted",
        ("warning",),
        ("reason",),
        "The latest decisions could not be written to the store at shutdown; the next controller computes them anew.",
    ),
    LogEvent(
        "leadership_attempt_failed",
        ("error",),
        ("reason",),
        "The controller cannot lead because its store cannot be used.",
        "Repair the store; the controller tries again by itself.",
    ),
    LogEvent(
        "lease_renewal_failed",
        ("error",),
        ("remaining_s", "reason"),
        "The leadership lease cannot be renewed; another controller may lead once it has run out.",
        "Check the store and the network to it.",
    ),
    LogEvent("lease_renewal_recovered", ("info",), ("term",), "The leadership lease is renewed again."),
    LogEvent(
        "no_eligible_gateway_for_replicas",
        ("error",),
        ("home_gateway", "replicas", "reason"),
        "Replicas have no eligible gateway, and serve no requests.",
        "Repair their home gateway, or allow another region in the residency policy or the controller's file.",
    ),
    LogEvent(
        "orphaned_replicas_assigned",
        ("info",),
        ("home_gateway",),
        "All replicas of a home gateway are assigned to a gateway again.",
    ),
    LogEvent(
        "pool_history_refused",
        ("warning",),
        ("gateway", "reason"),
        "The history of a pool that a gateway sent is refused; its next adopter predicts without it.",
        "If `reason` names a policy, allow the controller's region there; if it names a column, update `gateway`; "
        "the pool is served either way.",
    ),
    LogEvent(
        "pool_history_sent",
        ("info",),
        ("gateway", "home", "pool"),
        "The history of a disaggregated pool is sent to the gateway that serves the pool next.",
    ),
    LogEvent(
        "recovery_completed", ("info",), ("gateway", "output"), "The recovery action for a gateway has succeeded."
    ),
    LogEvent(
        "recovery_failed",
        ("error",),
        ("gateway", "result", "reason"),
        "The recovery action for a gateway has failed or timed out.",
        "Recover the gateway by hand, and correct the section `recovery` of the controller's file.",
    ),
    LogEvent(
        "recovery_skipped",
        ("info",),
        ("gateway", "reason"),
        "A gateway's recovery was not begun: this controller leads no more, or the gateway is not in AWS.",
        "If the gateway runs in AWS, name its region in `recovery.aws.regions`, and give its instance the tag.",
    ),
    LogEvent(
        "recovery_started",
        ("info",),
        ("gateway", "action", "command"),
        "The recovery action for a gateway that is down starts.",
    ),
    LogEvent(
        "region_policy_recorded",
        ("info",),
        ("region", "digest", "closed"),
        "The residency policy that the gateways of a region report is recorded; `closed` if it is absent or invalid.",
    ),
    LogEvent("replicas_reassigned", ("info",), ("assigned", "unassigned"), "Replicas are reassigned between gateways."),
    LogEvent(
        "standby",
        ("info",),
        ("admin",),
        "The controller stands by; the line is written to standard output, with its address.",
    ),
    LogEvent("standby_waiting", ("info",), ("reason",), "Another controller leads, and this one stands by."),
    LogEvent(
        "store_lost",
        ("error",),
        ("reason",),
        "Another controller holds the store; this one writes and sends nothing more, and stops.",
        "Nothing if another controller was meant to take over; otherwise make sure that only one set of controllers "
        "uses the store.",
    ),
    LogEvent(
        "store_release_failed",
        ("warning",),
        ("reason",),
        "The store could not be released at shutdown; another controller leads once the lease has run out.",
    ),
    LogEvent(
        "store_write_failed",
        ("error",),
        ("reason",),
        "The store cannot be written, and no new assignment takes effect.",
        "Repair the store: most likely its disk is full, or it cannot be reached.",
    ),
    LogEvent("store_write_recovered", ("info",), ("version",), "The store can be written again."),
)

EVENTS = (*SHARED, *CONTROLLER)
"""Every event that a controller may log."""
