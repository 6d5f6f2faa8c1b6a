"""Model lists of replicas, read and merged."""

import json

import pytest

from poise.wire.models import ModelListError, list_models, merge_models, read_models


def _list(*models: dict[str, object]) -> bytes:
    return json.dumps({"object": "list", "data": models}).encode()


def test_entries_keep_every_field_as_the_replica_wrote_it() -> None:
    entry = {"id": "qwen", "object": "model", "created": 1, "root": "/models/qwen", "max_model_len": 4096, "x": [1.50]}
    assert json.loads(list_models(merge_models([read_models(_list(entry))]))) == {"object": "list", "data": [entry]}
    (read,) = read_models(b'{"data":[ {"id" : "a", "n": 1.50} ]}')
    assert read.json == b'{"id" : "a", "n": 1.50}'


def test_each_id_is_listed_once_in_the_order_first_seen() -> None:
    first = read_models(_list({"id": "b", "from": 1}, {"id": "a", "from": 1}))
    second = read_models(_list({"id": "a", "from": 2}, {"id": "c", "from": 2}))
    merged = json.loads(list_models(merge_models([first, second])))["data"]
    assert merged == [{"id": "b", "from": 1}, {"id": "a", "from": 1}, {"id": "c", "from": 2}]


def test_no_lists_make_an_empty_list() -> None:
    assert json.loads(list_models(merge_models([]))) == {"object": "list", "data": []}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"data":{}}',
        b'{"data":[1]}',
        b'{"data":[{"id":1}]}',
        b'{"data":[{"id":"\xff"}]}',
    ],
)
def test_what_is_no_model_list_is_an_error(body: bytes) -> None:
    with pytest.raises(ModelListError, match="not an OpenAI model list"):
        read_models(body)
