"""The one error of the journal's far side: the file, the disk, the other process."""

from agentkit.errors import BoundaryError


class JournalError(BoundaryError):
    """The journal cannot be opened, read or written; the message names the file and the reason.

    `retryable` says whether the same call may succeed later (a full disk, a busy file).
    """
