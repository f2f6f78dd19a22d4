"""Profiles of Hypothesis for this folder: the usual one is quick and leaves nothing behind, the other takes hours.

    pytest tests/generated -k our_class_holds --hypothesis-profile thorough

draws until it finds something or is stopped; what it found is kept in ``.hypothesis``, and tried first the next time.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

NO_HEALTH_CHECKS = list(HealthCheck)
settings.register_profile(
    "thorough", max_examples=100_000, deadline=None, suppress_health_check=NO_HEALTH_CHECKS, print_blob=True
)
