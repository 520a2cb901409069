"""What can be wrong with a checkpoint, in words that say what to do.

Each has its text as its only argument: an error on one rank is pickled on its way to the others.
"""

from __future__ import annotations

from ..config import SkytrainError
from ..runs import EXIT_CODES
from ..storage import AccessDenied

USE_ANOTHER = (
    "\n  use another checkpoint: `skytrain checkpoints verify RUN` says which are whole; "
    "`skytrain train ... --fall-back` resumes a run from its newest whole one"
)


class CheckpointError(SkytrainError):
    """A checkpoint that cannot be read, written or used here."""


class DamagedCheckpoint(CheckpointError):
    """Bytes that are missing, or are not those that were committed."""

    exit_code = EXIT_CODES["damaged"]


class AnotherModel(CheckpointError):
    """A checkpoint of another model, vocabulary or tokenizer than the one it is to be loaded into."""


class SaveFailed(CheckpointError):
    """A checkpoint that was not committed. What was committed before is untouched."""


class SaveDenied(SaveFailed):
    """A checkpoint that was not committed, because the store denied access."""


def save_failure(error: SkytrainError) -> SaveFailed:
    """The store's error as one that can be sent to another rank."""
    return (SaveDenied if isinstance(error, AccessDenied) else SaveFailed)(str(error))


class TakenOver(CheckpointError):
    """A newer attempt at the run has begun, so this one may not commit."""

    exit_code = EXIT_CODES["superseded"]
