"""Every key of the configuration: type, default, range and what it does. `docs/configuration.md` is made from this."""

from collections import Counter
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from poise.config.replica_section import ReplicaSection
from poise.config.section import Section, problem
from poise.core.yaml_text import NOT_YAML, YamlLoader

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Duration = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1)]


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class TlsSection(Section):
    """Certificates (PEM) of a port. They are read again when the files change."""

    cert_file: str | None = Field(default=None, description="certificate chain; set: callers have to speak https")
    key_file: str | None = Field(default=None, description="its key; unset: it is in cert_file too")
    client_ca_file: str | None = Field(
        default=None, description="certificates that a caller's own must be signed by; unset: callers need none"
    )


class AdminSection(Section):
    """Where metrics and the state of the fleet are read."""

    host: str = Field(
        default="127.0.0.1", description="address of the admin port; any but this machine's own needs a key"
    )
    port: Port = Field(
        default=8081, description="admin port: /metrics, /healthz, /readyz, /api/fleet; 0 takes a free one"
    )
    key_env: str | None = Field(
        default=None,
        description="environment variable that holds the key that the admin port asks for, but on /healthz and /readyz",
    )

    tls: TlsSection = TlsSection()

    @model_validator(mode="after")
    def _need_a_key_where_others_can_reach_it(self) -> Self:
        if self.key_env is None and not _is_loopback(self.host):
            raise problem(
                f"host is {self.host}, where others could change the fleet, and no key is asked for",
                "name an environment variable that holds a key in admin.key_env",
            )
        return self


class VariantSection(Section):
    """One of the models that an alias stands for. A plain string stands for `{model: ...}`."""

    model: str = Field(description="a model that replicas serve")
    weight: float = Field(default=1.0, description="its share of the requests, beside the other weights; 0 is none")

    @model_validator(mode="before")
    @classmethod
    def _accept_plain_name(cls, value: object) -> object:
        return {"model": value} if isinstance(value, str) else value


Variants = Annotated[tuple[VariantSection, ...], BeforeValidator(lambda v: [v] if isinstance(v, str | dict) else v)]
Names = Annotated[tuple[str, ...], BeforeValidator(lambda v: [v] if isinstance(v, str) else v)]


class ModelsSection(Section):
    """What callers may call the models, and which model answers where another cannot."""

    aliases: Mapping[str, Variants] = Field(
        default={}, description="names that stand for a model, or for several by weight: {gpt-4: qwen}"
    )
    fallbacks: Mapping[str, Names] = Field(
        default={}, description="models to try, in turn, where no replica of a model can be sent a request"
    )

    @field_validator("aliases", "fallbacks", mode="before")
    @classmethod
    def _accept_text(cls, value: object) -> object:
        """From the environment a mapping comes as text, `{gpt-4: qwen}`."""
        if not (isinstance(value, str) and value.startswith("{")):
            return value
        try:
            return yaml.load(value, Loader=YamlLoader)
        except NOT_YAML:
            raise problem("is not YAML", "write it as {gpt-4: qwen}, with a blank after each colon") from None


class PolicySection(Section):
    """Which replica a request goes to. Further keys are the settings of the policy that `name` selects."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(
        default="soft_affinity", description="a name from `poise policies`, or your own as package.module:Class"
    )

    @property
    def settings(self) -> dict[str, Any]:
        """The keys beside `name`, not yet checked: the policy knows what they mean."""
        return dict(self.model_extra or {})


class TimeoutsSection(Section):
    """Time limits of one request."""

    connect_s: Seconds = Field(default=2.0, description="until the replica accepts the connection")
    first_output_s: Seconds = Field(default=25.0, description="until the first output; then another replica is tried")
    idle_s: Seconds = Field(default=25.0, description="between two reads of an answer that has begun")
    total_s: Seconds = Field(default=600.0, description="until a plain answer is complete or a stream has begun")
    hold_s: Seconds = Field(
        default=15.0, description="silence after which a waiting stream is sent a comment, and again"
    )
    request_s: Seconds = Field(default=60.0, description="until the caller has sent its whole request, else 408")
    keep_alive_s: Seconds = Field(default=75.0, description="how long an idle caller's connection is kept open")
    drain_delay_s: float = Field(
        default=0.5, ge=0, allow_inf_nan=False, description="how long new connections are still taken after SIGTERM"
    )
    drain_s: Seconds = Field(default=30.0, description="how long open requests may go on after that, then they are cut")


class RetrySection(Section):
    """When a request is tried on another replica."""

    attempts: int = Field(default=2, ge=1, description="replicas that one request may be sent to in all; 1 is no retry")
    budget_ratio: Ratio = Field(default=0.1, description="retries as a share of the requests of the last 10 s")
    budget_floor: int = Field(default=10, ge=0, description="retries per 10 s that are always allowed")


class BreakerSection(Section):
    """When a replica whose requests fail is left alone."""

    failures: int = Field(default=5, ge=1, description="failed requests that open a replica's breaker")
    window_s: Seconds = Field(default=30.0, description="how long a failed request counts")
    open_s: Seconds = Field(default=10.0, description="how long a replica is left alone before one request tries it")


class HealthSection(Section):
    """How replicas are judged beside their answers."""

    interval_s: Seconds = Field(default=2.0, description="time between two looks at a server's /health")
    timeout_s: Seconds = Field(default=2.0, description="a look at /health that takes longer has been missed")
    failures: int = Field(
        default=3, ge=1, description="misses in a row that take a replica out, unless it is seen at work"
    )
    stall_s: Seconds = Field(
        default=15.0, description="requests running for so long without a token take a replica out"
    )
    slow_start_s: Duration = Field(
        default=10.0, description="how long a replica that recovers takes to its full share; 0 gives it at once"
    )


class IdempotencySection(Section):
    """Answers that are kept for requests with an Idempotency-Key that are sent again."""

    max_bytes: Size = Field(default=64 * 1024**2, description="all answers kept for idempotency keys together")
    max_age_s: Seconds = Field(default=86400.0, description="how long an idempotency key is remembered")


class LimitsSection(Section):
    """Sizes above which a request is refused, who may wait, and the KV usage above which a replica gets none."""

    body_bytes: Size = Field(default=64 * 1024**2, description="one request's body, else 413")
    head_bytes: Size = Field(default=64 * 1024, description="one request's head, else 431")
    buffered_bytes: Size = Field(default=1024**3, description="all buffered bodies together, else 503")
    queue: int = Field(default=1000, ge=0, description="requests that may wait until a replica has room, else 429")
    queue_timeout_s: Seconds = Field(default=60.0, description="how long each may wait, else 429, or 503 if none is up")
    kv_throttle: Ratio = Field(default=0.85, description="KV usage above which a replica takes no new request")


class TelemetrySection(Section):
    """How replicas are watched."""

    interval_s: Seconds = Field(default=0.5, description="time between two scrapes of a replica's metrics")
    timeout_s: Seconds = Field(default=0.4, description="a scrape that takes longer has failed")
    stale_s: Seconds = Field(default=2.0, description="age at which a reading is no longer believed")
    models_interval_s: Seconds = Field(default=10.0, description="time between two looks at its model list")
    models_timeout_s: Seconds = Field(default=2.0, description="a look at the model list that takes longer has failed")


class MembershipSection(Section):
    """How the fleet is kept as the configuration, the admin API and DNS want it."""

    check_interval_s: Seconds = Field(
        default=1.0, description="time between two looks at the configuration file and at what it says of the fleet"
    )
    dns_interval_s: Seconds = Field(
        default=10.0, description="time between two looks at the addresses of replicas that are named"
    )


class StartupSection(Section):
    """What has to be there before callers are let in."""

    wait_for_replicas: Literal["none", "any", "all"] = Field(
        default="none", description="which replicas must have answered before the data port is opened"
    )
    timeout_s: Seconds = Field(default=600.0, description="how long they are waited for; then it opens without them")


class KeysSection(Section):
    """Who may call."""

    file: str | None = Field(default=None, description="YAML or JSON file of API keys; unset: callers need none")


class CorsSection(Section):
    """Which browser origins may call."""

    allow_origins: tuple[str, ...] = Field(
        default=(), description='origins, "*" is any; empty refuses preflight requests'
    )
    allow_headers: tuple[str, ...] = Field(default=("*",), description='request headers they may send, "*" is any')
    max_age_s: int = Field(default=600, ge=0, description="how long browsers keep the answer to a preflight request")


class LogSection(Section):
    """What is written down."""

    requests: str | None = Field(
        default=None, description='one JSON line per request into this file, "-" is standard error'
    )
    decisions: int = Field(
        default=200,
        ge=0,
        le=10_000,
        description="recent requests whose decisions /api/decisions explains; 0 keeps none",
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level of the gateway's log"
    )


class TracingSection(Section):
    """Where traces go. Needs `pip install 'poise[otel]'`."""

    endpoint: str | None = Field(
        default=None, description="OTLP collector, http://collector:4318; unset: no traces, trace headers pass unread"
    )
    sample_ratio: Ratio = Field(
        default=1.0, description="share of the traces begun here that is recorded; callers' own decide for themselves"
    )
    service_name: str = Field(default="poise", description="what traces call the gateway")

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise problem("is not an http or https address", "write it as http://collector:4318")
        return url


class Settings(Section):
    """The whole configuration. Every key has a default but `replicas`, which `poise serve` needs."""

    host: str = Field(default="0.0.0.0", description="address of the data port, where inference requests arrive")
    port: Port = Field(default=8080, description="data port; 0 takes a free one")
    reuse_port: bool = Field(
        default=False, description="let another process with this setting listen on the same ports, to take over"
    )
    tls: TlsSection = TlsSection()
    admin: AdminSection = AdminSection()
    replicas: tuple[ReplicaSection, ...] = Field(default=(), description="the engines to send requests to")
    membership: MembershipSection = MembershipSection()
    models: ModelsSection = ModelsSection()
    policy: PolicySection = PolicySection()
    startup: StartupSection = StartupSection()
    timeouts: TimeoutsSection = TimeoutsSection()
    retry: RetrySection = RetrySection()
    breaker: BreakerSection = BreakerSection()
    health: HealthSection = HealthSection()
    idempotency: IdempotencySection = IdempotencySection()
    limits: LimitsSection = LimitsSection()
    telemetry: TelemetrySection = TelemetrySection()
    keys: KeysSection = KeysSection()
    cors: CorsSection = CorsSection()
    log: LogSection = LogSection()
    tracing: TracingSection = TracingSection()
    reveal_replica: bool = Field(default=True, description="add x-poise-replica and x-poise-reason to answers")

    @field_validator("replicas")
    @classmethod
    def _name_replicas(cls, replicas: tuple[ReplicaSection, ...]) -> tuple[ReplicaSection, ...]:
        named = tuple(
            replica if replica.name else replica.model_copy(update={"name": f"r{position}"})
            for position, replica in enumerate(replicas, 1)
        )
        for what, values in (("name", [r.name for r in named]), ("url", [r.url for r in named])):
            twice = sorted(str(value) for value, count in Counter(values).items() if count > 1)
            if twice:
                raise problem(f"holds the {what} {', '.join(twice)} twice", f"give each replica a {what} of its own")
        return named

    @model_validator(mode="after")
    def _keep_ports_apart(self) -> Self:
        if self.port and self.port == self.admin.port and self.host in (self.admin.host, "0.0.0.0", "::"):
            raise problem(f"port and admin.port are both {self.port}", "choose two different ports")
        return self
