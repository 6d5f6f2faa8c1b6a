"""What a replica is called and where it lives; its state while the gateway runs is `poise.fleet`'s alone."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal
from urllib.parse import urlsplit

from poise.core.errors import ConfigError
from poise.core.secret import Secret

_RANK_SUFFIX = re.compile(r"@(\d{1,9})$")
_CREDENTIALS = re.compile(r"(?<=//)[^/\s]*@(?!\d{1,9}$)")
_QUERY = re.compile(r"([?#]).+")
_BASE = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)*")
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")  # a name or an address; brackets are gone
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class ReplicaState(StrEnum):
    """Where a replica is in its life. Only `READY` (and, ramped, `WARMING`) may be sent requests."""

    JOINING = "joining"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    ASLEEP = "asleep"
    UNHEALTHY = "unhealthy"


class Source(StrEnum):
    """Who named a replica: the configuration, the admin API, or the addresses of a host name."""

    CONFIG = "config"
    ADMIN = "admin"
    DNS = "dns"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files: whose certificates are trusted, and the certificate that is shown, with its key.

    None is the system's trust, no certificate, and a key that is in `cert_file` too.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """Where a replica is reached. Never shown to callers: they see the replica's name.

    `rank` selects one data-parallel rank behind the same server (`http://host:8000@2`), None the server as a whole.
    `ip` selects one of the addresses that `host` stands for, None whichever answers. `base` is what comes before `/v1`
    in its paths (`/api`). `tls_files` are the certificates, None the system's. Every request carries `api_key`.
    """

    host: str
    port: int
    tls: bool = False
    rank: int | None = None
    ip: str | None = None
    base: str = ""
    tls_files: TlsFiles | None = None
    api_key: Secret | None = None

    @property
    def url(self) -> str:
        """The address as it is written in configuration, rank included; with `ip` in the place of the name."""
        scheme = "https" if self.tls else "http"
        rank = "" if self.rank is None else f"@{self.rank}"
        authority = self.authority if self.ip is None else _authority(self.ip, self.port)
        return f"{scheme}://{authority}{self.base}{rank}"

    @property
    def authority(self) -> str:
        """Value of the `Host` header sent to the replica."""
        return _authority(self.host, self.port)


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One configured replica: a whole engine, on one GPU or on a tensor-parallel group of `gpus`.

    `max_concurrency` is how many requests it is given at once, None for no bound. `"auto"` bounds their tokens instead,
    prompt and expected output, to a share of what its KV cache holds; unknown is no bound.
    `model` restricts the replica to one model name; None means whatever its own `/v1/models` lists.
    `gpu_metrics_url` is a DCGM exporter's page on which `gpus` are the `gpu` labels of this replica.
    `each_address` makes it stand for one replica for each address that its host has.
    """

    name: str
    address: ReplicaAddress
    model: str | None = None
    gpus: tuple[int, ...] = ()
    gpu_metrics_url: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    source: Source = Source.CONFIG
    each_address: bool = False
    max_concurrency: int | Literal["auto"] | None = None

    def reached_as(self, other: "ReplicaSpec") -> bool:
        """Whether connections to the one would be connections to the other."""
        return self.address == other.address


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_replica_url(text: str) -> ReplicaAddress:
    """`http://host:port`, `https://host`, each with an optional path and `@rank`, as a `ReplicaAddress`.

    A `/v1` at the end of the path is not part of it: the gateway adds the paths. Raises `ConfigError` for any other
    scheme, for a query or credentials, and for a bad port.
    """
    match = _RANK_SUFFIX.search(text)
    rank = int(match.group(1)) if match else None
    plain = text[: match.start()] if match else text
    shown = repr(without_secrets(text))
    try:
        parts = urlsplit(plain)
        host = parts.hostname
    except ValueError as error:
        raise ConfigError(
            f"replica url {shown} cannot be read: {str(error).lower()}", hint="write it as http://host:8000"
        ) from None
    try:
        port = parts.port
    except ValueError:
        raise ConfigError(
            f"replica url {shown} has a port outside 1-65535", hint="write the port as a number"
        ) from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(
            f"replica url {shown} is not an http or https address",
            hint="write it as http://host:8000 or http://host:8000@1",
        )
    base = parts.path.rstrip("/").removesuffix("/v1")
    if "@" in parts.netloc or not _BASE.fullmatch(base) or parts.query or parts.fragment:
        raise ConfigError(
            f"replica url {shown} holds more than scheme, host, port, path and rank",
            hint="give the engine's root address; a key belongs into the variable that api_key_env names",
        )
    if port == 0 or not _HOST.fullmatch(host):
        raise ConfigError(
            f"replica url {shown} names no host and port that can be reached",
            hint="write it as http://host:8000; a port is 1 to 65535",
        )
    tls = parts.scheme == "https"
    return ReplicaAddress(host, port or (443 if tls else 80), tls, rank, base=base)


def without_secrets(url: str) -> str:
    """`url` with what may be a secret in it masked: user and password, and all of its query."""
    return _QUERY.sub(r"\1***", _CREDENTIALS.sub("***@", url))


def check_replica_name(name: str) -> str:
    """`name` itself if it may be shown and used as a label: letters, digits, `.`, `_`, `-`, at most 63."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"replica name {name!r} is not usable", hint="use 1 to 63 letters, digits, dots, dashes or underscores"
        )
    return name
