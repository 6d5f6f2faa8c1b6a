"""When a configuration is read again, and what a bad one does."""

import os
import re
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from poise.app.reload import KeysReloader, Reloader
from poise.config.changes import APPLIED, needs_restart
from poise.config.keys import all_keys
from poise.config.load import ConfigInputs, load_config
from poise.config.settings import Settings

GOOD = "replicas: ['http://a:1']\n"
BETTER = "replicas: ['http://a:1', 'http://b:1']\n"


class Followed:
    """A file that is followed, and how many replicas each applied configuration had."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "poise.yaml"
        self.path.write_text(GOOD)
        self.applied: list[int] = []
        self.reloader = Reloader(ConfigInputs(str(self.path), {}, {}), self._apply)

    def _apply(self, settings: Settings) -> None:
        self.applied.append(len(settings.replicas))

    def look(self, times: int = 3) -> list[int]:
        for _ in range(times):
            self.reloader.look()
        return self.applied


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path)


def test_what_is_not_new_is_not_applied(followed: Followed) -> None:
    assert followed.look() == []
    followed.path.write_text(GOOD)
    followed.path.touch()
    assert followed.look() == []


def test_new_content_is_applied_once_however_it_came(followed: Followed, tmp_path: Path) -> None:
    followed.path.write_text(BETTER)
    assert followed.look() == [2]
    other = tmp_path / "other.yaml"
    other.write_text(GOOD)
    other.rename(followed.path)
    assert followed.look() == [2, 1]


def test_a_link_may_be_moved_as_a_config_map_is(tmp_path: Path) -> None:
    for name, text in (("v1", GOOD), ("v2", BETTER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "poise.yaml").write_text(text)
    (tmp_path / "data").symlink_to("v1")
    applied: list[int] = []
    inputs = ConfigInputs(str(tmp_path / "data" / "poise.yaml"), {}, {})
    reloader = Reloader(inputs, lambda settings: applied.append(len(settings.replicas)))
    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").replace(tmp_path / "data")
    for _ in range(3):
        reloader.look()
    assert applied == [2]


def test_a_file_that_is_still_being_written_is_waited_for(followed: Followed) -> None:
    long = BETTER + "port: 9000\n"
    for end in range(len(GOOD), len(long) + 1):
        followed.path.write_text(long[:end])
        assert followed.look(times=1) == []
    assert followed.look() == [2]


@pytest.mark.parametrize("bad", ["replicas: [", "replica: []\n", "replicas: ['ftp://a']\n", None])
def test_a_bad_file_is_refused_once_and_a_good_one_is_taken_up_again(followed: Followed, bad: str | None) -> None:
    with capture_logs() as lines:
        if bad is None:
            followed.path.unlink()
        else:
            followed.path.write_text(bad)
        assert followed.look(times=5) == []
        (line,) = lines
        assert (line["log_level"], line["event"]) == ("error", "configuration refused, nothing is changed")
        assert str(followed.path) in line["problem"]
        followed.path.write_text(GOOD)
        assert followed.look() == [1]


def test_a_pipe_in_the_place_of_the_file_holds_nobody_up(followed: Followed, tmp_path: Path) -> None:
    applied: list[object] = []
    keys = KeysReloader(str(tmp_path / "poise.yaml"), applied.append)
    followed.path.unlink()
    os.mkfifo(followed.path)
    with capture_logs() as lines:
        followed.look()
        followed.reloader.reload()
        keys.reload()
    assert (followed.applied, applied) == ([], [])
    assert ["is a pipe" in line["problem"] for line in lines] == 3 * [True]
    followed.path.unlink()
    followed.path.write_text(BETTER)
    assert followed.look() == [2]


def test_on_demand_it_is_read_at_once_and_whether_or_not_it_is_new(followed: Followed) -> None:
    followed.reloader.reload()
    followed.path.write_text(BETTER)
    followed.reloader.reload()
    assert followed.look() == [1, 2]


def test_what_needs_a_restart_is_named() -> None:
    before = load_config(None, {}, {"port": 1, "policy.name": "random"}).settings
    after = load_config(
        None,
        {},
        {"port": 2, "admin.port": 3, "timeouts.idle_s": 9, "policy.name": "round_robin", "replicas": ["http://a"]},
    ).settings
    assert needs_restart(before, after) == ["port", "admin.port"]
    assert needs_restart(before, before) == []


def test_only_keys_that_there_are_take_effect_while_the_gateway_runs() -> None:
    for applied in APPLIED:
        assert any(name == applied or name.startswith(f"{applied}.") for name in all_keys()), applied


@pytest.mark.parametrize("bad", ["", "keys: []", "keys: [{name: a}]", "keys: [{name: a, key: sk-secret, models: 5}]"])
def test_a_bad_keys_file_is_refused_once_without_showing_it_and_a_good_one_is_applied(tmp_path: Path, bad: str) -> None:
    path, applied = tmp_path / "keys.yaml", []
    path.write_text("keys: [{name: a, key: sk-a}]")
    reloader = KeysReloader(str(path), lambda keys: applied.append([key.name for key in keys]))
    with capture_logs() as lines:
        path.write_text(bad)
        for _ in range(5):
            reloader.look()
        assert applied == []
        (line,) = lines
        assert (line["log_level"], line["event"]) == ("error", "keys file refused, the keys stay as they are")
        assert line["hint"] and "sk-secret" not in str(line)
        path.write_text("keys: [{name: b, key: sk-b}, {name: c, key: sk-c}]")
        for _ in range(5):
            reloader.look()
        path.unlink()
        reloader.reload()
    assert applied == [["b", "c"]]


def test_the_documentation_names_what_takes_effect_at_once() -> None:
    text = (Path(__file__).parents[3] / "docs" / "membership.md").read_text()
    named = text.partition("Of the other settings,")[2].partition("count from")[0]
    assert set(re.findall(r"`([a-z_.]+)`", named)) == {*APPLIED} - {"replicas"}
