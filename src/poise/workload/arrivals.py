"""When requests arrive, as gaps between them. Chance is passed in, so the same seed gives the same arrivals."""

from collections.abc import Iterator
from random import Random


def poisson_gaps_s(rate_per_s: float, random: Random) -> Iterator[float]:
    """Endless gaps in seconds between the arrivals of a Poisson process of `rate_per_s`: users who do not know of each
    other. Raises `ValueError` if the rate is not above 0."""
    if not rate_per_s > 0:
        raise ValueError(f"rate_per_s is {rate_per_s}, not above 0")
    while True:
        yield random.expovariate(rate_per_s)
