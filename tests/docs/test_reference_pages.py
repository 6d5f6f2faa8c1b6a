"""What the documentation says of keys, metrics, flags, policies and commands is what the code says."""

import re
from pathlib import Path

import pytest
import yaml
from reference import PARTS, ROOT, commands, pages, parts_of, render

from poise.admin.metrics import families
from poise.config.load import load_config

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BY_NAME = [pytest.param(page, id=page.name) for page in DOCS]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_made_parts_are_up_to_date(page: Path) -> None:
    assert page.read_text() == render(page.read_text()), "run python tests/docs/reference.py"


def test_every_part_is_shown_somewhere() -> None:
    assert set().union(*(parts_of(page.read_text()) for page in pages())) == set(PARTS)


@pytest.mark.parametrize("page", BY_NAME)
def test_only_metrics_that_exist_are_named(page: Path) -> None:
    known = {family.name for family in families()}
    named = set(re.findall(r"\bpoise_[a-z0-9_]+\b(?!:)|\bprocess_(?:cpu|resident)[a-z0-9_]*\b", page.read_text()))
    suffixes = ("", "_bucket", "_sum", "_count")
    assert {name for name in named if not any(name.removesuffix(suffix) in known for suffix in suffixes)} == set()


@pytest.mark.parametrize("page", BY_NAME)
def test_only_commands_and_flags_that_exist_are_named(page: Path) -> None:
    lines = re.sub(r"\\\n\s*", " ", page.read_text()).splitlines()
    for line in lines:
        for command, rest in re.findall(r"(?:^|[`\s(/])poise ((?:[a-z]+-)*[a-z]+)\b([^`|;&#]*)", line):
            is_command = line.startswith(("poise ", "$ poise ")) or f"`poise {command}" in line
            if not is_command:
                continue
            assert command in commands(), line
            flags = {option for parameter in commands()[command].params for option in parameter.opts}
            assert set(re.findall(r"--[a-z][a-z-]*", rest)) <= flags | {"--worker-urls", "--help"}, line


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def test_the_example_configuration_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration, keys = blocks("configuration.md", "yaml")
    monkeypatch.chdir(tmp_path)
    Path("poise.yaml").write_text(configuration)
    Path("keys.yaml").write_text(keys.replace("sha256:...", "sha256:" + "0" * 64))
    settings = load_config("poise.yaml", {}).settings
    assert [replica.name for replica in settings.replicas] == ["a", "b0", "b1"]
    assert yaml.safe_load(configuration)["policy"] == {"name": settings.policy.name, **settings.policy.settings}
