"""Layers of the configuration, where each value came from, and what is said when it is wrong."""

from itertools import combinations
from pathlib import Path

import pytest

from poise.config.keys import Key, all_keys
from poise.config.load import load_config
from poise.core.errors import ConfigError

LAYERS = ("file", "environment", "flag")
FITTING_TEXT = {
    "admin.host": "::1",
    "replicas": "http://a:8000 http://b:8000@1",
    "tracing.endpoint": "http://collector:4318",
    "log.level": "error",
    "policy.name": "random",
    "models.aliases": "{gpt-4: qwen}",
    "models.fallbacks": "{qwen: [llama]}",
    "startup.wait_for_replicas": "any",
}
"""For the keys that do not take any text."""


def write(folder: Path, text: str) -> str:
    path = folder / "poise.yaml"
    path.write_text(text)
    return str(path)


def error_of(path: str | None, environment: dict[str, str] | None = None, **overrides: object) -> str:
    with pytest.raises(ConfigError) as raised:
        load_config(path, environment or {}, {name.replace("__", "."): value for name, value in overrides.items()})
    return str(raised.value)


@pytest.mark.parametrize(
    "given",
    [set(some) for count in range(4) for some in combinations(LAYERS, count)],
    ids=lambda given: "-".join(sorted(given)) or "none",
)
def test_the_highest_layer_that_sets_a_key_wins_and_is_named(tmp_path: Path, given: set[str]) -> None:
    path = write(tmp_path, "admin:\n  port: 1001\n") if "file" in given else None
    environment = {"POISE_ADMIN_PORT": "1002"} if "environment" in given else {}
    overrides = {"admin.port": 1003} if "flag" in given else {}
    loaded = load_config(path, environment, overrides)
    expected = {
        "flag": (1003, "command line"),
        "environment": (1002, "POISE_ADMIN_PORT"),
        "file": (1001, f"{path}:2"),
    }
    winner = next((expected[layer] for layer in reversed(LAYERS) if layer in given), (8081, "default"))
    assert (loaded.settings.admin.port, loaded.source(("admin", "port"))) == winner
    assert loaded.source(("admin", "host")) == "default", "its neighbour in the section was set by nobody"


@pytest.fixture(autouse=True)
def _keys_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`text`, which is given to every key that takes any text, is then a keys file too."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("keys: [{name: a, key: sk-1}]\n")


def fitting_text(key: Key, number: int) -> str:
    by_type = {int: str(number), float: "0.5", bool: "false"}
    return FITTING_TEXT.get(key.name) or by_type.get(key.field.annotation, "text")  # type: ignore[arg-type]


def test_every_key_is_set_by_its_variable() -> None:
    environment = {key.variable: fitting_text(key, number) for number, key in enumerate(all_keys().values(), 1)}
    loaded = load_config(None, environment)
    assert not loaded.warnings
    assert {loaded.source(key.path) for key in all_keys().values()} == set(environment)
    assert [replica.url for replica in loaded.settings.replicas] == ["http://a:8000", "http://b:8000@1"]


def test_every_key_is_set_by_its_dotted_name() -> None:
    for number, key in enumerate(all_keys().values(), 1):
        text: object = fitting_text(key, number)
        value = str(text).split() if key.is_list else text
        assert load_config(None, {}, {key.name: value}).source(key.path) == "command line", key.name


def test_environment_that_is_not_for_poise_is_left_alone_and_a_slip_is_warned_of() -> None:
    injected_by_kubernetes = {
        "POISE_PORT": "tcp://10.0.0.1:8080",
        "POISE_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "POISE_PORT_8080_TCP_ADDR": "10.0.0.1",
        "POISE_SERVICE_HOST": "10.0.0.1",
        "POISE_SERVICE_PORT_HTTP": "8080",
    }
    others = {"PATH": "/bin", "POISE_HOST": "", "POISE_CONFIG": "x.yaml"}
    loaded = load_config(None, injected_by_kubernetes | others)
    assert (loaded.settings.port, loaded.settings.host, loaded.warnings) == (8080, "0.0.0.0", ())
    (warning,) = load_config(None, {"POISE_ADMIN_PROT": "1"}).warnings
    assert "POISE_ADMIN_PROT" in warning
    assert warning.endswith("did you mean POISE_ADMIN_PORT?")


def test_a_list_from_a_higher_layer_replaces_the_list_below(tmp_path: Path) -> None:
    path = write(tmp_path, "replicas:\n  - {url: 'http://a:1', name: a}\n  - http://b:1\n")
    loaded = load_config(path, {})
    assert [replica.name for replica in loaded.settings.replicas] == ["a", "r2"]
    assert loaded.source(("replicas", 1, "url")) == f"{path}:3"
    loaded = load_config(path, {}, {"replicas": ["http://c:1"]})
    assert [replica.name for replica in loaded.settings.replicas] == ["r1"]
    assert loaded.source(("replicas", 0, "url")) == "command line"


def test_everything_wrong_is_reported_at_once_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, "port: abc\ntimeouts:\n  conect_s: 2\n  idle_s: -1\nlog: {level: loud}\n")
    text = error_of(path, {"POISE_RETRY_ATTEMPTS": "0"}, log__levl="info")
    for expected in (
        "6 settings are wrong",
        f"{path}:1: port is 'abc', should be a valid integer",
        f"{path}:3: unknown key 'timeouts.conect_s', did you mean connect_s?",
        f"{path}:4: timeouts.idle_s is -1, should be greater than 0",
        f"{path}:5: log.level is 'loud', should be 'debug', 'info', 'warning' or 'error'",
        "POISE_RETRY_ATTEMPTS: retry.attempts is '0', should be greater than or equal to 1",
        "command line: unknown key 'log.levl', did you mean log.level?",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ("aliases: {a: b, b: c}", "models.aliases.a names b, which is an alias itself"),
        ("aliases: {a: [{model: b, wieght: 1}]}", "unknown key 'models.aliases.a[0].wieght', did you mean weight?"),
        ("aliases: {a: [{weight: 1}]}", "models.aliases.a[0].model is missing"),
        ("aliases: {a: 1}", "models.aliases.a is 1"),
        ("fallbacks: {a: [1]}", "models.fallbacks.a[0] is 1"),
        ("fallbacks: {a: [a]}", "models.fallbacks.a names a itself"),
        ("aliases: text", "models.aliases is 'text'"),
        ("aliases: '{a: ['", "models.aliases: is not YAML"),
        ("aliases: '{a: 2024-13-45}'", "models.aliases: is not YAML"),
    ],
)
def test_wrong_names_of_models_are_told_in_full(tmp_path: Path, models: str, said: str) -> None:
    path = write(tmp_path, f"port: 1\nmodels:\n  {models}\n")
    text = error_of(path)
    assert text.startswith(path) and said in text


@pytest.mark.parametrize("key", ["endpoints", "account"])
def test_a_section_of_a_later_release_is_an_error_not_a_dead_setting(tmp_path: Path, key: str) -> None:
    assert f"unknown key '{key}'" in error_of(write(tmp_path, f"{key}: {{}}\n"))


@pytest.mark.parametrize("key", sorted(name for name in all_keys() if "." in name and name != "policy.name"))
def test_a_slip_of_one_letter_in_any_key_is_told_from_it(tmp_path: Path, key: str) -> None:
    section, _, name = key.rpartition(".")
    slip = name[:-1] + "x"
    opened = section.replace(".", ": {")
    text = error_of(write(tmp_path, f"{opened}: {{{slip}: 1}}{'}' * section.count('.')}\n"))
    assert f"unknown key '{section}.{slip}', did you mean {name}?" in text


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("replicas: [{url: 'ftp://a'}]", "is not an http or https address"),
        ("replicas: ['http://a:99999']", "has a port outside 1-65535"),
        ("replicas: ['http://user:pw@a:1']", "holds more than scheme, host, port, path and rank"),
        ("replicas: [{url: 'http://a', name: 'a b'}]", "replica name 'a b' is not usable"),
        ("replicas: [{url: 'http://a', name: x}, {url: 'http://b', name: x}]", "holds the name x twice"),
        ("replicas: ['http://a:80', 'http://a']", "holds the url http://a:80 twice"),
        ("replicas: [{url: 'http://a', name: r2}, 'http://b']", "holds the name r2 twice"),
        ("replicas: [{url: 'http://a', gpu_metrics_url: 'x'}]", "is not an http or https address"),
        *(
            (f"replicas: [{{url: 'http://a', gpu_metrics_url: 'http://{rest}'}}]", "is not the address of a page")
            for rest in ("[/x", "h:99999/x", "user:secret@h/x", "", "h/a b", "h/\N{EN DASH}")
        ),
        ("replicas: [{name: a}]", "replicas[0].url is missing"),
        ("replicas: [7]", "replicas[0] is 7, should be keys and values"),
        ("port: 8081", "port and admin.port are both 8081"),
        ("timeouts: {idle_s: .nan}", "timeouts.idle_s is nan, should be"),
        ("timeouts: 5", "timeouts is 5, should be keys and values"),
        ("limits: {kv_throttle: 85}", "limits.kv_throttle is 85, should be less than or equal to 1"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_in_words(tmp_path: Path, yaml: str, said: str) -> None:
    text = error_of(write(tmp_path, yaml + "\n"))
    assert said in text
    assert f"{tmp_path / 'poise.yaml'}:1: " in text or "port and admin.port" in text
    assert "pydantic" not in text and "Section" not in text and "secret" not in text


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("{name: soft_afinity}", "policy 'soft_afinity' is unknown"),
        ("{name: soft_affinity, afinity_threshold: 1}", "no setting 'afinity_threshold'"),
        ("{name: load_score, weights: {kv: -1}}", "weight kv is -1"),
        ("{name: random, weights: {kv: 1}}", "no setting 'weights'"),
        ("{name: 'nowhere.at_all:Policy'}", "nowhere.at_all"),
    ],
)
def test_a_policy_is_asked_whether_it_takes_its_settings(tmp_path: Path, policy: str, said: str) -> None:
    path = write(tmp_path, f"port: 1\npolicy: {policy}\n")
    text = error_of(path)
    assert text.startswith(f"{path}:2: ")
    assert said in text
    assert "hint: " in text


def test_an_environment_variable_does_not_hide_that_the_file_is_wrong_there(tmp_path: Path) -> None:
    assert "timeouts is 5" in error_of(write(tmp_path, "timeouts: 5\n"), {"POISE_TIMEOUTS_IDLE_S": "3"})


def test_a_file_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in error_of(str(tmp_path / "none.yaml"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in error_of(str(tmp_path / "binary.yaml"))


def test_the_keys_file_is_read_with_the_configuration(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    path = write(tmp_path, f"port: 1\nkeys: {{file: {keys}}}\n")
    assert f"{path}:2: keys file {keys} cannot be read: No such file or directory" in error_of(path)
    keys.write_text("keys: []\n")
    assert f"{path}:2: keys file does not hold a list of keys" in error_of(path)
    keys.write_text("keys: [{name: a, key: sk-1}]\n")
    assert load_config(path, {}).settings.keys.file == str(keys)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_the_admin_port_may_go_without_a_key_where_nobody_else_reaches_it(host: str) -> None:
    assert load_config(None, {}, {"admin.host": host}).settings.admin.key_env is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "admin.example"])
def test_the_admin_port_needs_a_key_where_others_reach_it(host: str) -> None:
    with pytest.raises(ConfigError, match=f"admin: host is {host}, where others could change the fleet") as raised:
        load_config(None, {}, {"admin.host": host})
    assert "admin.key_env" in (raised.value.hint or "")
    assert load_config(None, {}, {"admin.host": host, "admin.key_env": "ADMIN_KEY"}).settings.admin.host == host


def test_a_variable_that_holds_a_key_is_one_of_poises() -> None:
    environment = {"POISE_ADMIN_KEY": "s3cret", "POISE_ADMIN_KEY_ENV": "POISE_ADMIN_KEY"}
    loaded = load_config(None, environment)
    assert loaded.warnings == ()
    assert "s3cret" not in repr(loaded)
