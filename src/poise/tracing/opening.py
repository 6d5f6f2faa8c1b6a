"""Makes tracing as it is configured, if the optional packages for it are there."""

from importlib.util import find_spec
from random import Random

from poise.core.errors import ConfigError
from poise.tracing.tracer import Tracing, TracingSettings


def open_tracing(settings: TracingSettings, random: Random) -> Tracing:
    """Tracing to a collector. Raises `ConfigError` if the packages for it are not installed."""
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
        raise ConfigError(
            "tracing.endpoint is set, but OpenTelemetry is not installed",
            hint="pip install 'poise[otel]', or unset tracing.endpoint",
        )
    from poise.tracing.otlp import OtlpDelivery  # what it needs is optional, and takes 300 ms to import

    return Tracing(settings, random, OtlpDelivery(settings.endpoint, settings.service_name))
