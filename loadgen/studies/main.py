"""`nightside results`: plays a study, in virtual time or live, and writes its page and its plots."""

from __future__ import annotations

import click

from loadgen.studies.balanceroute.command import balanceroute
from loadgen.studies.batches.command import batch
from loadgen.studies.batches.day_command import batch_day
from loadgen.studies.capacity.command import capacity
from loadgen.studies.composition.command import composition
from loadgen.studies.eldr.command import eldr
from loadgen.studies.failover.command import failover
from loadgen.studies.long.command import long_run
from loadgen.studies.outside.command import outside
from loadgen.studies.placement.command import placement
from loadgen.studies.placement.live.command import live
from loadgen.studies.placement.trial import trial
from loadgen.studies.predictors.command import predictors
from loadgen.studies.prompts.command import token_budget_classifier
from loadgen.studies.protocols.command import protocols
from loadgen.studies.resume.command import resume
from loadgen.studies.sharing.command import sharing
from loadgen.studies.skywalker.command import skywalker
from loadgen.studies.succession.command import succession
from loadgen.studies.token_budget.command import token_budget
from loadgen.studies.token_budget.live_command import token_budget_live
from loadgen.studies.wan.command import wan

STUDIES = (
    skywalker, placement, live, trial, balanceroute, protocols, predictors, token_budget, token_budget_live,
    token_budget_classifier, eldr, resume, sharing, failover, composition, succession, batch,
    batch_day, outside, wan, long_run, capacity,
)  # fmt: skip


@click.group(commands=STUDIES)
def results() -> None:
    """Repeat published measurements and write pages of results.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
