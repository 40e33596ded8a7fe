"""Intervals of shares: those of E. B. Wilson (Probable inference, the law of succession, and statistical inference, Journal of the
American Statistical Association 22, 1927).
"""

from __future__ import annotations

import math

Z = 1.96
"""Standard errors of an interval that holds in 95 % of cases."""
Interval = tuple[float, float, float]
"""An estimate, and the lower and upper end of its interval."""


def wilson(mean: float, n: float, z: float = Z) -> Interval:
    """A mean of ``n`` independent values from 0 to 1, with its interval. For values between 0 and 1 it is too wide rather
    than too narrow, because their variance is at most ``mean · (1 - mean)``. It is also right where all values are equal."""
    if n <= 0:
        return mean, 0.0, 1.0
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(max(mean * (1 - mean), 0.0) / n + z * z / (4 * n * n))
    return mean, max(0.0, centre - half), min(1.0, centre + half)
