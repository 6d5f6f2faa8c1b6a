"""`poise serve`: flags, and the other routers' way to list replicas."""

import random

import pytest
import yaml
from test_cli_main import poise

from poise.cli.serve import expand_worker_urls

URLS = ["http://a:1", "http://b:2@0", "http://c:3"]
AS_REPLICAS = [part for url in URLS for part in ("--replica", url)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--worker-urls", *URLS],
        ["--worker-urls", ",".join(URLS)],
        [f"--worker-urls={','.join(URLS)}"],
        ["--worker-urls", f"{URLS[0]},{URLS[1]}", URLS[2]],
        ["--worker-urls", URLS[0], "--worker-urls", *URLS[1:]],
        [f"--worker-urls={URLS[0]}", "--replica", URLS[1], "--worker-urls", URLS[2]],
    ],
)
def test_worker_urls_mean_replicas_wherever_they_stand(arguments: list[str]) -> None:
    assert list(expand_worker_urls(arguments)) == AS_REPLICAS
    assert list(expand_worker_urls([*arguments, "--port", "80"])) == [*AS_REPLICAS, "--port", "80"]
    assert list(expand_worker_urls(["--port", "80", *arguments])) == ["--port", "80", *AS_REPLICAS]


def test_a_value_after_an_equals_sign_begins_no_list() -> None:
    assert list(expand_worker_urls(["--worker-urls=http://a", "http://b"])) == ["--replica", "http://a", "http://b"]


def test_flags_in_any_order_reach_the_configuration_with_their_source() -> None:
    flags = [
        ["--worker-urls", "http://a:1", "http://b:1"],
        ["--replica", "http://c:1"],
        ["--policy", "load_score"],
        ["--set", "policy.weights.kv=0.9"],
        ["--set", "cors.allow_origins=[https://x]"],
        ["--host", "127.0.0.1"],
        ["--port", "9"],
        ["--admin-host", "::1"],
        ["--admin-port", "10"],
        ["--log-requests", "-"],
        ["--log-level", "error"],
    ]
    random.Random(5).shuffle(flags)
    result = poise("serve", "--print-config", *(part for flag in flags for part in flag))
    assert (result.exit_code, result.stderr) == (0, "")
    values = yaml.safe_load(result.stdout)
    assert sorted(replica["url"] for replica in values["replicas"]) == ["http://a:1", "http://b:1", "http://c:1"]
    assert values["policy"] == {"name": "load_score", "weights": {"kv": 0.9}}
    assert values["cors"]["allow_origins"] == ["https://x"]
    assert (values["host"], values["port"]) == ("127.0.0.1", 9)
    assert (values["admin"]["host"], values["admin"]["port"]) == ("::1", 10)
    assert values["log"] == {"requests": "-", "decisions": 200, "level": "error"}
    assert result.stdout.count("# command line") == 12


def test_the_file_may_be_named_by_the_environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("config") / "poise.yaml"
    path.write_text("port: 7\n")
    result = poise("serve", "--print-config", environment={"POISE_CONFIG": str(path), "POISE_HOST": "::"})
    assert f"# {path}:1" in result.stdout
    assert "# POISE_HOST" in result.stdout


def test_a_slip_in_the_environment_is_warned_of_and_does_not_disturb_the_output() -> None:
    result = poise("serve", "--print-config", environment={"POISE_PROT": "7"})
    assert result.exit_code == 0
    assert result.stderr == "warning: environment variable POISE_PROT is not one of Poise's, did you mean POISE_PORT?\n"
    assert yaml.safe_load(result.stdout)["port"] == 8080
