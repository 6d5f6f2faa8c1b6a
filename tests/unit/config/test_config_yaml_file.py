"""YAML errors name the line."""

import pytest

from poise.config.yaml_file import parse_yaml
from poise.core.errors import ConfigError


def test_every_value_has_the_line_on_which_it_begins() -> None:
    file = parse_yaml("port: 1\n\nreplicas:\n  - url: a\n    gpus: [0,\n      1]\n  - b\n", "f.yaml")
    assert file.values == {"port": 1, "replicas": [{"url": "a", "gpus": [0, 1]}, "b"]}
    assert file.lines == {
        ("port",): 1,
        ("replicas",): 3,
        ("replicas", 0): 4,
        ("replicas", 0, "url"): 4,
        ("replicas", 0, "gpus"): 5,
        ("replicas", 0, "gpus", 0): 5,
        ("replicas", 0, "gpus", 1): 6,
        ("replicas", 1): 7,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "f.yaml:3: "),
        ("a: 1\n\tb: 2\n", "f.yaml:2: "),
        ("a: 'x\n", "f.yaml:2: "),
        ("a: &x [*y]\n", "f.yaml:1: "),
        ("a: !!python/object:os.system {}\n", "f.yaml:1: "),
        ("a: 2024-13-45\n", "f.yaml: "),
        ("a: &x [*x]\n", "f.yaml: a value holds itself"),
        ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", "f.yaml:5: key 'c' is given twice, first on line 3"),
        ("- a\n", "f.yaml holds a list, not keys and values"),
        ("just text\n", "f.yaml holds one value, not keys and values"),
        ("2024-01-01\n", "f.yaml holds one value, not keys and values"),
        ("? [a]\n: 1\n", "f.yaml:1: "),
        ("a: " + 20_000 * "[", "f.yaml"),
        ("a: " + 20_000 * "[" + 20_000 * "]", "f.yaml"),
        ('a: "\\ud800"\n', "f.yaml"),
        ("a: \0\n", "f.yaml: "),
    ],
)
def test_what_is_not_a_mapping_in_yaml_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_yaml(text, "f.yaml")
    assert str(raised.value).startswith(said)
    assert "\nhint: " in str(raised.value)


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n"])
def test_an_empty_file_sets_nothing(text: str) -> None:
    assert parse_yaml(text, "f.yaml").values == {}
