"""Every key of one entry of `replicas`."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from poise.config.section import Section, problem, reported
from poise.core.replica import check_replica_name, parse_replica_url
from poise.telemetry.watches import page_at

LONGEST_PREFIX = 23
"""Of a replica's name that an IPv6 address is added to."""


class ReplicaSection(Section):
    """One engine that holds the whole model. A plain string stands for `{url: ...}`."""

    url: str = Field(description="root address, http://host:8000; @2 at its end selects one data-parallel rank")
    name: str | None = Field(
        default=None, description="shown to callers and in metrics; unset: r1, r2, ... by position"
    )
    model: str | None = Field(
        default=None, description="model served there; unset: what the replica's /v1/models lists"
    )
    gpus: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), description="its GPUs on gpu_metrics_url; their mean utilisation counts"
    )
    gpu_metrics_url: str | None = Field(
        default=None, description="page of a DCGM exporter that shows the replica's GPUs"
    )
    labels: Mapping[str, str] = Field(default={}, description="free labels, shown by /api/fleet")
    api_key_env: str | None = Field(
        default=None, description="environment variable that holds its API key; callers' own are then not passed on"
    )
    ca_file: str | None = Field(
        default=None, description="certificates (PEM) that an https replica is checked against; unset: the system's"
    )
    cert_file: str | None = Field(default=None, description="certificate (PEM) that is shown to an https replica")
    key_file: str | None = Field(default=None, description="key (PEM) of cert_file; unset: it is in cert_file too")
    each_address: bool = Field(
        default=False, description="one replica for each address that the host name has, as of a headless service"
    )
    max_concurrency: int | Literal["auto"] | None = Field(
        default=None, description="requests it is given at once; auto: as many as 0.8 of its KV cache holds"
    )

    @model_validator(mode="after")
    def _leave_room_for_the_address(self) -> Self:
        if self.each_address and len(self.name or "") > LONGEST_PREFIX:
            raise problem(
                f"name {self.name} is too long for names that end in an address",
                f"use at most {LONGEST_PREFIX} characters where each_address is set",
            )
        return self

    @model_validator(mode="after")
    def _need_https_for_certificates(self) -> Self:
        if any((self.ca_file, self.cert_file, self.key_file)) and not self.url.startswith("https://"):
            raise problem(f"url {self.url} is not https, which the certificates are for", "write it as https://host")
        if self.key_file and not self.cert_file:
            raise problem("key_file is given without cert_file", "give the certificate that it belongs to")
        return self

    @model_validator(mode="before")
    @classmethod
    def _accept_plain_url(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return reported(lambda: parse_replica_url(url).url)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        return reported(lambda: name and check_replica_name(name))

    @field_validator("max_concurrency", mode="before")
    @classmethod
    def _check_max_concurrency(cls, most: object) -> object:
        if most in (None, "auto") or (isinstance(most, int) and not isinstance(most, bool) and most >= 1):
            return most
        raise problem(f"is {most!r}", "it is a whole number from 1, or auto")

    @field_validator("gpu_metrics_url")
    @classmethod
    def _check_gpu_metrics_url(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise problem("is not an http or https address", "write it as http://host:9400/metrics")
        if url is not None:
            reported(lambda: page_at(url))
        return url
