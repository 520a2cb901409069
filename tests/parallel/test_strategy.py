"""The mesh's strategy in a job of one process."""

import pytest

from skytrain.jobs import Ranks
from skytrain.parallel import MeshStrategy
from tests.parallel import workers


def test_what_goes_wrong_before_there_are_weights_is_what_is_told(monkeypatch):
    def fail(self, module):
        raise RuntimeError("a rank was lost")

    monkeypatch.setattr(MeshStrategy, "_build", fail)
    with Ranks().joined("cpu"), pytest.raises(RuntimeError, match="a rank was lost"):
        workers.fit(("parallel=fsdp",), workers.Watch())
