"""What records of earlier versions mean without a setting."""

import json

from skytrain.config import BEFORE


def test_what_an_old_record_means_is_what_a_new_one_says() -> None:
    """A record is JSON. A tuple here would differ from the list that a new record has, and the run would not resume."""
    for settings in BEFORE.values():
        assert json.loads(json.dumps(settings)) == settings
