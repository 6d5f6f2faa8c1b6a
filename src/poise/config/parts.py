"""The settings of each part of the gateway, taken from the configuration."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from poise.admission.idempotency import IdempotencySettings
from poise.admission.keys import KeyRing
from poise.admission.keys_file import parse_keys
from poise.config.replica_section import ReplicaSection
from poise.config.settings import Settings, TlsSection
from poise.config.text_file import read_text
from poise.core.errors import ConfigError
from poise.core.replica import ReplicaSpec, Source, TlsFiles, parse_replica_url
from poise.core.secret import Secret, secret_from
from poise.core.tls import client_context
from poise.health.settings import BreakerSettings, HealthSettings
from poise.proxy.settings import Cors, DataPathSettings, Limits, RetrySettings, Timeouts
from poise.routing.model_names import ModelNames
from poise.routing.policy import Policy
from poise.routing.registry import make_policy
from poise.telemetry.settings import TelemetrySettings
from poise.tracing.tracer import TracingSettings


def data_path_settings(settings: Settings) -> DataPathSettings:
    """What `DataPath` is told."""
    return DataPathSettings(
        host=settings.host,
        port=settings.port,
        reuse_port=settings.reuse_port,
        timeouts=Timeouts(**settings.timeouts.model_dump(exclude={"drain_s", "drain_delay_s"})),
        limits=Limits(**settings.limits.model_dump(exclude={"kv_throttle"})),
        retry=RetrySettings(**settings.retry.model_dump()),
        idempotency=IdempotencySettings(**settings.idempotency.model_dump()),
        cors=Cors(**settings.cors.model_dump()),
        reveal_replica=settings.reveal_replica,
        decisions_kept=settings.log.decisions,
    )


def telemetry_settings(settings: Settings) -> TelemetrySettings:
    """What `Poller` is told."""
    return TelemetrySettings(**settings.telemetry.model_dump(exclude={"stale_s"}))


def breaker_settings(settings: Settings) -> BreakerSettings:
    """When breakers open, and for how long."""
    return BreakerSettings(**settings.breaker.model_dump())


def health_settings(settings: Settings) -> HealthSettings:
    """How replicas are judged beside their answers."""
    return HealthSettings(**settings.health.model_dump())


def replica_specs(settings: Settings, environment: Mapping[str, str]) -> list[ReplicaSpec]:
    """The replicas that the configuration names. Raises `ConfigError` if a key or certificate cannot be had."""
    return [replica_spec(replica, Source.CONFIG, environment) for replica in settings.replicas]


def replica_spec(replica: ReplicaSection, source: Source, environment: Mapping[str, str]) -> ReplicaSpec:
    """One of them, or one that somebody else names in the same words."""
    key, files = replica.api_key_env, TlsFiles(replica.ca_file, replica.cert_file, replica.key_file)
    address = replace(
        parse_replica_url(replica.url),
        tls_files=None if files == TlsFiles() else files,
        api_key=None if key is None else secret_from(environment, key, f"the key of replica {replica.name}"),
    )
    if address.tls:
        client_context(address.tls_files)  # to see whether it can be made
    return ReplicaSpec(
        name=replica.name or "",
        address=address,
        model=replica.model,
        gpus=replica.gpus,
        gpu_metrics_url=replica.gpu_metrics_url,
        labels=replica.labels,
        source=source,
        each_address=replica.each_address,
        max_concurrency=replica.max_concurrency,
    )


def model_names(settings: Settings) -> ModelNames:
    """Aliases and fallbacks, checked. Raises `ConfigError`."""
    aliases = {
        alias: [(variant.model, variant.weight) for variant in variants]
        for alias, variants in settings.models.aliases.items()
    }
    return ModelNames(aliases, settings.models.fallbacks)


def policy(settings: Settings, random: Random) -> Policy:
    """The placement rule, with its settings checked. Raises `ConfigError`."""
    return make_policy(settings.policy.name, settings.policy.settings, random)


def key_ring(settings: Settings) -> KeyRing | None:
    """The API keys, None if callers need none. Raises `ConfigError`."""
    if settings.keys.file is None:
        return None
    return read_keys(settings.keys.file)


def read_keys(path: str) -> KeyRing:
    """The API keys in the file at `path`. Raises `ConfigError`."""
    return parse_keys(read_text(path, "keys file"))


def admin_key(settings: Settings, environment: Mapping[str, str]) -> Secret | None:
    """The key that the admin port asks for, None if it asks for none. Raises `ConfigError`."""
    variable = settings.admin.key_env
    return None if variable is None else secret_from(environment, variable, "the admin key")


def credential_variables(settings: Settings) -> set[str]:
    """The environment variables that the configuration names as holding a key."""
    return {settings.admin.key_env or "", *(replica.api_key_env or "" for replica in settings.replicas)}


def tracing_settings(settings: Settings) -> TracingSettings | None:
    """Where traces go, None if nowhere."""
    tracing = settings.tracing
    if tracing.endpoint is None:
        return None
    return TracingSettings(tracing.endpoint, tracing.sample_ratio, tracing.service_name)


def port_files(section: TlsSection) -> TlsFiles | None:
    """The certificates of a port, None if it is to speak http. Raises `ConfigError`."""
    if section.cert_file is None:
        if section.key_file or section.client_ca_file:
            raise ConfigError("tls holds no cert_file", hint="give the certificate that the port is to show")
        return None
    return TlsFiles(section.client_ca_file, section.cert_file, section.key_file)
