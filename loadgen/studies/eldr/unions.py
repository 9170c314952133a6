"""Counts the distinct experts that batches read, of one domain and mixed (ELDR's Fig. 4). It only computes."""

from __future__ import annotations

import numpy as np

from loadgen.engine.experts import log_absence
from loadgen.studies.eldr.requests import Requests

BATCHES = (32, 64, 128)
_DRAWN = 12


def mean_union(requests: Requests, batch: int, *, is_mixed: bool, seed: int = 0) -> float:
    """Mean number of distinct experts per step and layer of random batches, drawn with repetition; batches of one
    domain take each domain by its share."""
    rng = np.random.default_rng((seed, batch))
    absences = np.stack([log_absence(each) for each in requests.decode])
    domains = np.array(requests.domains)
    found = []
    for _ in range(_DRAWN):
        pool = np.arange(len(domains)) if is_mixed else np.flatnonzero(domains == domains[rng.integers(len(domains))])
        chosen = rng.choice(pool, batch)
        found.append(-np.expm1(absences[chosen].sum(axis=0)).sum() / requests.shape.layers)
    return float(np.mean(found))


def fewer_in_one_domain(requests: Requests, batches: tuple[int, ...] = BATCHES) -> float:
    """Mean over batch sizes of the share by which batches of one domain have fewer experts than mixed ones."""
    shares = []
    for batch in batches:
        mixed = mean_union(requests, batch, is_mixed=True)
        shares.append(1.0 - mean_union(requests, batch, is_mixed=False) / mixed)
    return float(np.mean(shares))
