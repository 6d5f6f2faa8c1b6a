"""The merged model list in memory."""

import json

from poise.telemetry.catalog import ModelCatalog
from poise.wire.models import ModelEntry

A1, A2, B = ModelEntry("a", b'{"id":"a","by":1}'), ModelEntry("a", b'{"id":"a","by":2}'), ModelEntry("b", b'{"id":"b"}')


def test_the_list_and_its_entries_agree_and_end_with_the_last_replica() -> None:
    catalog = ModelCatalog()
    assert (catalog.page(), catalog.entry("a")) == (None, None)
    catalog.show([[A1], [B, A2]])
    assert json.loads(catalog.page() or b"")["data"] == [{"id": "a", "by": 1}, {"id": "b"}]
    assert (catalog.entry("a"), catalog.entry("b"), catalog.entry("c")) == (A1.json, B.json, None)
    catalog.show([[A2]])
    assert (catalog.entry("a"), catalog.entry("b")) == (A2.json, None)
    catalog.show([])
    assert (catalog.page(), catalog.entry("a")) == (None, None)


def test_aliases_are_listed_while_a_model_of_theirs_is() -> None:
    catalog = ModelCatalog()
    catalog.show_aliases({"gpt-4": ["a"], "x": ["absent", "b"], "y": ["absent"], "b": ["a"]})
    assert catalog.page() is None
    catalog.show([[A1, B]])
    shown = json.loads(catalog.page() or b"")["data"]
    alias = {"root": "a", "owned_by": "poise"}
    assert shown == [
        {"id": "a", "by": 1},
        {"id": "b"},
        {"id": "gpt-4", "by": 1, **alias},
        {"id": "x", "root": "b", "owned_by": "poise"},
    ]
    assert json.loads(catalog.entry("gpt-4") or b"") == shown[2]
    assert catalog.entry("y") is None
    catalog.show_aliases({})
    assert catalog.entry("gpt-4") is None
    catalog.show([[B]])
    assert json.loads(catalog.page() or b"")["data"] == [{"id": "b"}]


def test_an_unchanged_list_is_not_built_again() -> None:
    catalog = ModelCatalog()
    catalog.show([[A1]])
    page = catalog.page()
    catalog.show([[A1]])
    assert catalog.page() is page
