"""The gateway's own refusals: what they look like, and that what they refuse reaches nobody."""

import json

from support.gateway import Gateway
from support.raw_client import Answer
from support.scripted_replica import ScriptedReplica


def error_of(got: Answer) -> dict[str, object]:
    """The error in an answer of the gateway's own."""
    error = json.loads(got.body)["error"]
    assert error["message"] and error["type"] and error["code"]
    assert isinstance(error, dict)
    return error


async def refused(poise: Gateway, replica: ScriptedReplica, sent: bytes, *statuses: int) -> Answer:
    """The gateway's refusal of `sent`, with one of the statuses and in words; nothing of it has reached the replica."""
    caller = await poise.client()
    await caller.send(sent)
    got = await caller.answer(within_s=2)
    assert got.status in statuses, (got.status, bytes(got.body))
    assert error_of(got)
    await poise.settled()
    assert replica.requests == []
    return got
