"""How often replicas are asked for their metrics and models; every duration in seconds."""

from dataclasses import dataclass

from poise.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """`interval_s` between two scrapes of a replica, each of which has failed after `timeout_s`.

    `models_interval_s` between two looks at a replica's model list, each of which has failed after `models_timeout_s`.
    """

    interval_s: float = 0.5
    timeout_s: float = 0.4
    models_interval_s: float = 10.0
    models_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"telemetry.{name} is {getattr(self, name)}", hint="durations are above 0")
