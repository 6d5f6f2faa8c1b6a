"""The command line as users meet it: what goes to which stream, exit codes, and every help page word for word."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from poise import __version__
from poise.cli.main import app

SNAPSHOTS = Path(__file__).parent / "snapshots"
COMMANDS = ("serve", "demo", "engine", "top", "policies", "check-config")


def poise(*arguments: str, environment: dict[str, str | None] | None = None) -> Result:
    clean: dict[str, str | None] = {name: None for name in os.environ if name.startswith("POISE_")}
    fixed = {"COLUMNS": "100", "TERMINAL_WIDTH": "100"}
    return CliRunner().invoke(app, list(arguments), env=clean | fixed | (environment or {}), prog_name="poise")


def assert_snapshot(name: str, text: str) -> None:
    """`text` is what the file says. Run with POISE_TEST_WRITE=1 to write it after a change that is meant."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("POISE_TEST_WRITE"):
        path.write_text(text)
    assert text == path.read_text()


def test_version() -> None:
    result = poise("--version")
    assert (result.exit_code, result.stdout) == (0, f"poise {__version__}\n")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_page(command: str) -> None:
    result = poise(*filter(None, [command]), "--help")
    assert result.exit_code == 0
    assert_snapshot(f"help-{command or 'poise'}", result.stdout)


def test_every_command_is_on_the_front_page_and_nothing_else() -> None:
    shown = poise("--help").stdout.partition("Commands:")[2].splitlines()
    assert [line.split()[0] for line in shown if line.startswith("  ") and line[2:3].strip()] == list(COMMANDS)


ERRORS = {
    "no-replica": ["serve"],
    "bad-url": ["serve", "--replica", "gpu1:8000"],
    "unknown-policy": ["serve", "--replica", "http://a:1", "--policy", "soft_afinity"],
    "unknown-key": ["serve", "--replica", "http://a:1", "--set", "timeout.idle_s=3"],
    "no-value": ["serve", "--replica", "http://a:1", "--set", "timeouts.idle_s"],
    "bad-yaml": ["serve", "--replica", "http://a:1", "--set", "policy.weights={"],
    "several": ["serve", "--replica", "ftp://a", "--log-level", "loud", "--port", "99999"],
    "no-file": ["check-config", "nowhere.yaml"],
    "unknown-flag": ["serve", "--prot", "80"],
    "unknown-command": ["server"],
    "unknown-profile": ["engine", "--profile", "h100"],
    "bad-speed": ["engine", "--speed", "0"],
    "demo-policy": ["demo", "--policy", "best"],
    "demo-profile": ["demo", "--profile", "h100"],
    "not-a-list": ["serve", "--set", "replicas=http://a:1"],
    "not-a-number": ["serve", "--port", "http"],
    "no-file-named": ["check-config"],
    "too-many": ["check-config", "a.yaml", "b.yaml"],
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_mistake_is_answered_on_standard_error_with_exit_code_2(name: str) -> None:
    result = poise(*ERRORS[name])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ") and "\nhint: " in result.stderr
    assert_snapshot(f"error-{name}", result.stderr)


def test_check_config_says_right_or_everything_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "poise.yaml"
    path.write_text("replicas: ['http://a:1']\npolicy: {name: random}\n")
    result = poise("check-config", str(path))
    assert (result.exit_code, result.stdout) == (0, f"{path} is right: 1 replica, policy random\n")
    path.write_text("replica: ['http://a:1']\nport: x\n")
    result = poise("check-config", str(path))
    assert result.exit_code == 2
    assert f"{path}:1: unknown key 'replica', did you mean replicas?" in result.stderr
    assert f"{path}:2: port is 'x'" in result.stderr


def test_policies_are_listed_for_people_and_for_programs() -> None:
    assert_snapshot("policies", poise("policies").stdout)
    listed = json.loads(poise("policies", "--json").stdout)["policies"]
    assert [row["name"] for row in listed if row["default"]] == ["soft_affinity"]
    assert listed[-1]["settings"]["weights.kv"] == 0.5
