"""Errors of checkpoints.

Each takes its text as its only argument, since an error on one rank is pickled and sent to the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..config import EXIT_CODES, SkytrainError
from ..storage import AccessDenied, DamagedRecord

ANOTHER = (
    "use another checkpoint: `skytrain checkpoints verify RUN` says which are intact; "
    "`skytrain train ... --fall-back` resumes a run from its newest intact one"
)


USE_ANOTHER = f"\n  {ANOTHER}"


class CheckpointError(SkytrainError):
    """A checkpoint that cannot be read, written or used here."""


class DamagedCheckpoint(CheckpointError, DamagedRecord):
    """Bytes are missing, or are not those that were committed."""

    exit_code = EXIT_CODES["damaged"]


@contextmanager
def damage_of_checkpoint() -> Iterator[None]:
    """Raise damage that is found inside the block as that of a checkpoint."""
    try:
        yield
    except DamagedRecord as error:
        raise error if isinstance(error, CheckpointError) else DamagedCheckpoint(str(error)) from None


class AnotherModel(CheckpointError):
    """The checkpoint belongs to another model, vocabulary or tokenizer."""


class SaveFailed(CheckpointError):
    """A checkpoint was not committed. Earlier ones are untouched."""


class SaveDenied(SaveFailed):
    """A checkpoint was not committed, because the store denied access."""


def save_failure(error: SkytrainError) -> SaveFailed:
    """Return the store's error as one that can be sent to another rank."""
    return (SaveDenied if isinstance(error, AccessDenied) else SaveFailed)(str(error))


class TakenOver(CheckpointError):
    """A newer attempt at the run has started, so this one may not commit."""

    exit_code = EXIT_CODES["superseded"]
