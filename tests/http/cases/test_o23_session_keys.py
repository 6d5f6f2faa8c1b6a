"""A session key of any shape is either used or ignored, never an error, and every gateway places it the same."""

import json
from collections import Counter
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest

from poise.routing.registry import make_policy
from support.apis import APIS, CHAT
from support.gateway import Gateway, gateway
from support.http_bytes import request
from support.raw_client import RawClient, client
from support.scripted_replica import ScriptedReplica
from support.scripts import answers
from support.serve_data_path import data_path_process

ODD_VALUES: list[Any] = [12345, None, "", {"id": 1}, "x" * 10_000, [1], True, 1.5, -1, 10**400, "中\u0000", "\ud800"]
FIELDS = ("user", "prompt_cache_key", "session_id")


async def replicas_in(stack: AsyncExitStack, count: int) -> list[ScriptedReplica]:
    """So many replicas that answer, until the stack is left."""
    return [await stack.enter_async_context(ScriptedReplica(answers())) for _ in range(count)]


async def placed(caller: RawClient, body: bytes, headers: list[tuple[str, str]] | None = None) -> str:
    """The name of the replica that answered."""
    got = await caller.ask(request(body=body, headers=headers or []))
    assert got.status == 200, bytes(got.body)
    return (got.value("x-poise-replica") or b"").decode()


async def affine(stack: AsyncExitStack, count: int) -> Gateway:
    """A gateway with session affinity over so many replicas."""
    replicas = await replicas_in(stack, count)
    return await stack.enter_async_context(gateway(*replicas, policy=make_policy("soft_affinity", {}, Random(1))))


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", ODD_VALUES, ids=lambda value: repr(value)[:20])
async def test_no_value_is_an_error(field: str, value: object) -> None:
    async with AsyncExitStack() as stack:
        poise = await affine(stack, 3)
        caller = await poise.client()
        for api in APIS:
            body = json.dumps({**api.body, field: value}).encode()
            for _ in range(2):
                assert (await caller.ask(request(api.path, body))).status == 200


@pytest.mark.parametrize("field", ["prompt_cache_key", "session_id"])
@pytest.mark.parametrize("value", [12345, "x" * 10_000, "中"], ids=lambda value: repr(value)[:20])
async def test_a_number_or_a_text_of_any_length_sticks(field: str, value: object) -> None:
    async with AsyncExitStack() as stack:
        caller = await (await affine(stack, 8)).client()
        bodies = [CHAT.request_body(stream=False, **{field: value, "seed": number}) for number in range(12)]
        assert len({await placed(caller, body) for body in bodies}) == 1


async def test_a_user_with_the_same_first_turn_sticks() -> None:
    async with AsyncExitStack() as stack:
        caller = await (await affine(stack, 8)).client()
        for user in (12345, "12345", "someone"):
            bodies = [CHAT.request_body(stream=False, user=user, seed=number) for number in range(12)]
            assert len({await placed(caller, body) for body in bodies}) == 1


@pytest.mark.parametrize("value", [None, "", {"id": 1}], ids=repr)
async def test_no_key_is_balanced_as_usual(value: object) -> None:
    async with AsyncExitStack() as stack:
        caller = await (await affine(stack, 3)).client()
        body = CHAT.request_body(stream=False, prompt_cache_key=value, session_id=value, user=value)
        counts = Counter([await placed(caller, body) for _ in range(60)])
        assert set(counts.values()) == {20}


async def test_headers_name_the_session_in_their_order() -> None:
    async with AsyncExitStack() as stack:
        caller = await (await affine(stack, 8)).client()
        body = CHAT.request_body(stream=False)
        by_key = [await placed(caller, body, [("X-Session-ID", f"key {number}")]) for number in range(30)]
        assert len(set(by_key)) > 3
        for name in ("x-session-affinity", "X-Claude-Code-Session-Id", "session-id", "session_id"):
            assert [await placed(caller, body, [(name, f"key {number}")]) for number in range(30)] == by_key
        both = [
            await placed(caller, body, [("session-id", "other"), ("x-session-id", f"key {number}")])
            for number in range(30)
        ]
        assert both == by_key
        odd = await caller.ask(request(body=body, headers=[("X-Session-ID", ""), ("X-User-ID", "caf\xe9")]))
        assert odd.status == 200


async def test_every_process_places_two_hundred_keys_the_same() -> None:
    async with AsyncExitStack() as stack:
        ports = [replica.port for replica in await replicas_in(stack, 5)]
        placements = []
        for hash_seed in (0, 12345, 0, 12345):
            async with data_path_process("soft_affinity", ports, hash_seed=hash_seed) as port, client(port) as caller:
                body = CHAT.request_body(stream=False)
                placements.append(
                    [await placed(caller, body, [("X-Session-ID", f"session-{number}")]) for number in range(200)]
                )
        assert placements[0] == placements[1] == placements[2] == placements[3]
        assert set(placements[0]) == {f"r{number}" for number in range(1, 6)}
        assert max(Counter(placements[0]).values()) < 80
