"""Hypothesis profiles: `HYPOTHESIS_PROFILE=thorough` tries many more examples."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadlines: a slow machine is no wrong behaviour. Building a long history is slow compared to checking it.
settings.register_profile(
    "quick", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
