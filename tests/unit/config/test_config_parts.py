"""The defaults in the configuration are those of the parts that are configured."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from poise.config.load import load_config
from poise.config.parts import data_path_settings, key_ring, model_names, replica_specs, telemetry_settings
from poise.config.settings import Settings
from poise.core.replica import ReplicaAddress, ReplicaSpec
from poise.fleet.fleet import Fleet
from poise.proxy.settings import Cors, DataPathSettings
from poise.routing.registry import DEFAULT_POLICY
from poise.telemetry.settings import TelemetrySettings


def test_defaults_are_those_of_the_parts() -> None:
    settings = Settings()
    assert data_path_settings(settings) == DataPathSettings()
    assert telemetry_settings(settings) == TelemetrySettings()
    assert settings.limits.kv_throttle == Fleet().kv_throttle_ratio
    assert settings.telemetry.stale_s == Fleet().stale_s
    assert settings.policy.name == DEFAULT_POLICY
    assert key_ring(settings) is None


def test_each_key_reaches_its_part() -> None:
    changed = {
        "port": 1,
        "timeouts.idle_s": 9,
        "limits.head_bytes": 9,
        "retry.attempts": 9,
        "idempotency.max_bytes": 9,
        "reveal_replica": False,
    }
    overrides = changed | {"cors.allow_origins": ["https://a"], "telemetry.interval_s": 9}
    settings = load_config(None, {}, overrides).settings
    default = DataPathSettings()
    assert data_path_settings(settings) == replace(
        default,
        port=1,
        timeouts=replace(default.timeouts, idle_s=9),
        limits=replace(default.limits, head_bytes=9),
        retry=replace(default.retry, attempts=9),
        reveal_replica=False,
        idempotency=replace(default.idempotency, max_bytes=9),
        cors=Cors(allow_origins=("https://a",)),
    )
    assert telemetry_settings(settings) == TelemetrySettings(interval_s=9)


def test_models_become_names() -> None:
    models = {"aliases": {"gpt-4": "qwen", "x": ["a", {"model": "b", "weight": 0}]}, "fallbacks": {"qwen": "llama"}}
    names = model_names(Settings.model_validate({"models": models}))
    assert names.aliases == {"gpt-4": ["qwen"], "x": ["a"]}
    assert names.fallbacks("qwen") == ("llama",)


def test_replicas_become_specs() -> None:
    given = {"url": "http://a:8000@2", "name": "x", "model": "m", "gpus": [0, 1], "labels": {"bucket": "long"}}
    settings = load_config(
        None, {}, {"replicas": ["https://b", given | {"gpu_metrics_url": "http://g/metrics"}]}
    ).settings
    assert replica_specs(settings, {}) == [
        ReplicaSpec("r1", ReplicaAddress("b", 443, tls=True)),
        ReplicaSpec("x", ReplicaAddress("a", 8000, rank=2), "m", (0, 1), "http://g/metrics", {"bucket": "long"}),
    ]


@pytest.mark.parametrize("most", [None, 1, 8, "auto"])
def test_caps_reach_the_replicas(most: object) -> None:
    settings = Settings.model_validate({"replicas": [{"url": "http://a:1", "max_concurrency": most}]})
    assert replica_specs(settings, {})[0].max_concurrency == most


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "8", "Auto", "", []])
def test_a_wrong_cap_is_told_once_with_what_is_right(wrong: object) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"replicas": [{"url": "http://a:1", "max_concurrency": wrong}]})
    (error,) = caught.value.errors()
    assert error["ctx"]["hint"] == "it is a whole number from 1, or auto"
