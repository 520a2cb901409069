"""YaRN's factor on cos and sin, for the rotation itself and for readers of config.json. No torch."""

from __future__ import annotations

import math


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """Return the factor that sharpens attention over a context that is longer by `factor`."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
