"""Settings of the `batches` section of a region file. They decide nothing."""

from __future__ import annotations

from pathlib import Path

from gateway.features.section import FeatureSection
from mesh.values import MEBIBYTE, SECOND_NS


class BatchesConfig(FeatureSection, frozen=True):
    """Batches of OpenAI's and Anthropic's APIs: requests in a file, executed as class `batch`. Off unless a folder is
    named."""

    folder: Path | None = None
    """Folder of the files and of the batches' state; it holds clients' text. None: no batches."""
    file_max_bytes: int = 200 * MEBIBYTE
    """Largest file that a client may upload."""
    inline_max_bytes: int = 64 * MEBIBYTE
    """Largest body that hands in a batch with all its requests, as in Anthropic's API. One at a time is in memory."""
    tenant_max_bytes: int = 20 * 1024 * MEBIBYTE
    """Total size of one tenant's files above which it may upload no further one."""
    folder_max_bytes: int = 100 * 1024 * MEBIBYTE
    """Total size of all files above which no client may upload a further one."""
    lines_max: int = 50_000
    """Most requests in one batch."""
    line_max_bytes: int = MEBIBYTE
    """Largest request in a batch."""
    answer_max_bytes: int = 4 * MEBIBYTE
    """Largest answer to a request of a batch; a larger one becomes an error."""
    requests_max: int = 32
    """Requests of all batches that wait or run at once."""
    urgent_share: float = 0.1
    """Share of `requests_max`, rounded down, that may run as class `interactive` while a batch would miss its window,
    in the last quarter of it. 0: none."""
    uploads_max: int = 8
    """Uploads at once."""
    tenant_uploads_max: int = 4
    """Uploads of one tenant at once."""
    batches_max: int = 8
    """Batches that run at once."""
    tenant_batches_max: int = 2
    """Batches of one tenant that run at once."""
    tenant_unfinished_max: int = 100
    """Batches of one tenant that wait or run; a further one is refused."""
    tenant_ended_max: int = 1_000
    """Batches of one tenant that have ended; a further batch takes the place of the oldest one, whose files stay."""
    tenant_files_max: int = 10_000
    """Files of one tenant; a further upload is refused."""
    keep_ns: int = 30 * 24 * 3600 * SECOND_NS
    """Time after which a file, or a batch that has ended, is deleted."""
