"""Registry of log events: the type of an entry, and the events that gateways and controllers share.

An event's name is stable: operators search for it and alert on it. What varies is in fields, and no call puts request
content in a field.
"""

from __future__ import annotations

from msgspec import Struct


class LogEvent(Struct, frozen=True):
    """One kind of log line."""

    name: str
    """Value of `event`, in snake_case."""
    levels: tuple[str, ...]
    """Levels that it is logged at; several only where the same event is more or less severe."""
    fields: tuple[str, ...]
    """Fields beyond those of every line; some may be absent."""
    meaning: str
    """One sentence, which the controller's page shows as well."""
    action: str = "Nothing."
    """Action for the operator."""


SHARED = (
    LogEvent(
        "background_task_failed",
        ("error",),
        ("loop", "exception"),
        "A background task failed with an unexpected exception, and starts again after a pause.",
        "Report the exception as a defect.",
    ),
    LogEvent(
        "cached_issuer_keys_unusable",
        ("warning",),
        ("issuer", "tokens_for", "reason"),
        "The issuer's keys stored before the restart cannot be used, and are fetched again.",
    ),
    LogEvent(
        "core_crashed",
        ("critical",),
        ("exception",),
        "The decision core failed with an unexpected exception, and the process stops.",
        "Let the supervisor restart the process, and report the exception with the crash record as a defect.",
    ),
    LogEvent(
        "crash_record_write_failed",
        ("critical",),
        ("path", "reason"),
        "The steps before a crash of the core could not be written to disk.",
        "Make room on the disk of the journal folder.",
    ),
    LogEvent(
        "crash_record_written",
        ("critical",),
        ("path",),
        "The steps before a crash of the core are written to a file.",
        "Attach the file to the defect report.",
    ),
    LogEvent(
        "dns_client_rate_limited",
        ("warning",),
        ("network", "answers_per_s"),
        "A network exceeds the rate limit of DNS queries, and some of its queries are dropped or answered truncated.",
        "Raise `dns.answers_per_s` if the network is a large resolver.",
    ),
    LogEvent(
        "dns_internal_error",
        ("error",),
        ("exception",),
        "An unexpected exception occurred while answering a DNS query.",
        "Report the exception as a defect.",
    ),
    LogEvent(
        "dns_records_applied",
        ("info",),
        ("zone", "version", "region_count"),
        "The DNS server answers from a new version of the zone's records.",
    ),
    LogEvent("dns_server_started", ("info",), ("addresses", "version"), "The DNS server listens on its addresses."),
    LogEvent("files_changed", ("info",), ("part",), "Files of a part of the configuration changed and are read again."),
    LogEvent(
        "issuer_keys_fetch_failed",
        ("error",),
        ("issuer", "tokens_for", "reason", "cached_keys_usable"),
        "The keys of a token issuer cannot be fetched.",
        "Check that the issuer can be reached. `cached_keys_usable` holds at the time of the line; while the metric "
        "`nightside_issuer_unusable` is 1, all its tokens are refused.",
    ),
    LogEvent(
        "issuer_keys_fetched",
        ("info",),
        ("issuer", "tokens_for", "keys", "cause"),
        "The keys of a token issuer are fetched; they have changed, or the fetch before had failed.",
    ),
    LogEvent(
        "issuer_keys_not_persisted",
        ("error",),
        ("issuer", "tokens_for", "reason"),
        "The keys of a token issuer cannot be written to `state.folder`.",
        "Check the folder's permissions and free space; a restart needs the issuer to be reachable.",
    ),
    LogEvent(
        "journal_stopped",
        ("error",),
        ("reason",),
        "The journal of decisions cannot be written any more, and ends here.",
        "Make room on the disk, then restart the process to begin another journal.",
    ),
    LogEvent(
        "library_message",
        ("warning", "error"),
        ("library", "message", "suppressed", "exception"),
        "A library reported a warning or an error; repetitions within ten seconds are counted in `suppressed`.",
        "Read the message; report it as a defect if requests are affected.",
    ),
    LogEvent(
        "log_lines_lost",
        ("warning",),
        ("lines",),
        "Standard error took no line for so long that lines of this log were dropped; requests were not delayed.",
        "See what reads the log: a full disk, or a collector that stalls.",
    ),
    LogEvent(
        "malformed_call",
        ("error",),
        ("method", "caller", "suppressed"),
        "A gRPC call carried bytes that are not a message of the protocol, and was rejected.",
        "Find out what runs at the caller's address.",
    ),
    LogEvent(
        "ready",
        ("info",),
        ("region", "jurisdiction", "clients", "admin", "peers", "term", "gateways"),
        "The process serves; the line is written to standard output, with its addresses.",
    ),
    LogEvent("reload_applied", ("info",), ("part",), "A part of the configuration was read again and is in force."),
    LogEvent(
        "reload_failed",
        ("error",),
        ("part", "exception"),
        "A part of the configuration could not be read because of an unexpected exception; what was in force stays.",
        "Report the exception as a defect.",
    ),
    LogEvent(
        "reload_rejected",
        ("error",),
        ("part", "faults"),
        "A part of the configuration is invalid; what was in force stays in force.",
        "Correct the faults; `nightside gateway check FILE` or `nightside controller check FILE` lists the same.",
    ),
    LogEvent("reload_requested", ("info",), ("parts",), "Every part of the configuration is read again by order."),
    LogEvent(
        "tls_certificate_expired",
        ("error",),
        ("role", "serial"),
        "A TLS certificate in use has expired, and connections with it are refused.",
        "Replace the certificate at once.",
    ),
    LogEvent(
        "tls_certificate_expiring",
        ("warning",),
        ("role", "serial", "days_left"),
        "A TLS certificate in use expires soon.",
        "Replace the certificate; it is read again when the file changes.",
    ),
)
