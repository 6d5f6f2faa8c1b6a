"""`--print-config` can be used as the configuration file."""

from pathlib import Path

import yaml

from poise.config.keys import all_keys
from poise.config.load import load_config
from poise.config.show import show_config

EVERYTHING = """\
host: "::1"
replicas:
  - {url: "http://a:8000@2", name: "1", gpus: [0, 1], gpu_metrics_url: "http://g:9400/metrics", labels: {bucket: long}}
  - {url: "https://b", model: "a: b # c"}
policy: {name: load_score, weights: {kv: 1.0, queue: 0.0}}
models: {aliases: {gpt-4: qwen, "a: b": [a, {model: b, weight: 0}]}, fallbacks: {qwen: llama}}
cors: {allow_origins: ["*"]}
log: {requests: "-"}
"""


def test_what_is_shown_is_the_same_configuration(tmp_path: Path) -> None:
    path = tmp_path / "poise.yaml"
    path.write_text(EVERYTHING)
    loaded = load_config(str(path), {"POISE_PORT": "99"}, {"retry.attempts": 3})
    shown = show_config(loaded)
    path.write_text(shown)
    assert load_config(str(path), {}).settings == loaded.settings
    assert show_config(load_config(str(path), {})) != shown, "the sources differ"


def test_every_key_is_shown_with_its_source() -> None:
    shown = show_config(
        load_config(None, {"POISE_PORT": "99"}, {"replicas": ["http://a:1"], "policy.weights": {"kv": 1}})
    )
    lines = shown.splitlines()
    assert "port: 99                                          # POISE_PORT" in lines
    assert "  - {url: 'http://a:1', name: r1}                 # command line" in lines
    assert "    kv: 1                                         # command line" in lines
    values = yaml.safe_load(shown)
    for key in all_keys().values():
        here = values
        for step in key.path:
            here = here[step]
    assert [line for line in lines if "#" not in line and not line.endswith(":")] == []


def test_credentials_in_a_url_are_masked_and_a_rank_is_not() -> None:
    overrides = {"replicas": ["http://a:1@2"], "tracing.endpoint": "http://user:secret@c:4318/x"}
    shown = show_config(load_config(None, {}, overrides))
    assert "secret" not in shown
    assert "http://***@c:4318/x" in shown
    assert "http://a:1@2" in shown
