"""Whether a stream was finished does not depend on how its bytes came."""

import json
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.proxy.routes import ROUTES
from poise.wire.answers import Usage
from poise.wire.stream_end import Fault, StreamEnd, StreamEndWatch, done_offset
from support.apis import (
    APIS,
    CHAT,
    COMMENT,
    COMPLETIONS,
    DONE,
    MESSAGES,
    RESPONSES,
    USAGE,
    Api,
    chat_event,
    data,
    events_of,
    typed,
)  # fmt: skip
from support.http_bytes import to_json

CHAT_USAGE = chat_event(None, usage=USAGE)
COUNTED: Usage = (11, 7, None)
ENDS = {api.name: ROUTES[api.path.encode()].stream_end for api in APIS}

Block = bytes
Case = tuple[StreamEnd, tuple[bytes, ...], Fault | None, Usage | None]


def whole_cases() -> list[tuple[str, Case]]:
    """Name, and how it has to be judged, of streams of each API: whole, broken off, cut, failed, named oddly."""
    cases: list[tuple[str, Case]] = []
    counted: dict[str, Usage | None] = {"chat": None, "completions": None, "responses": COUNTED, "messages": COUNTED}
    for api in APIS:
        end, error, begun = ENDS[api.name], api.error_event(500), api.events[:-1]
        said = COUNTED if api is MESSAGES else None
        cases += [
            (f"{api.name} whole", (end, api.events, None, counted[api.name])),
            (f"{api.name} cut", (end, begun, Fault.UNFINISHED, said)),
            (f"{api.name} cut at once", (end, (api.output,), Fault.UNFINISHED, None)),
            (f"{api.name} error", (end, (*api.silent, api.output, error), Fault.UNFINISHED, None)),
            (f"{api.name} error, then its end", (end, (api.output, error, api.ending), Fault.UNFINISHED,
                                                 COUNTED if api is RESPONSES else None)),
            (f"{api.name} empty", (end, (), Fault.UNFINISHED, None)),
        ]  # fmt: skip
        fault = Fault.UNFINISHED if api is RESPONSES else Fault.ABORTED
        aborted = (*api.silent, api.output, *api.aborted)
        cases.append((f"{api.name} broken off", (end, aborted, fault, COUNTED if api is MESSAGES else None)))
    for api in (CHAT, COMPLETIONS):
        end = ENDS[api.name]
        cases += [
            (f"{api.name} with usage", (end, (*api.events[:-1], CHAT_USAGE, DONE), None, COUNTED)),
            (f"{api.name} never finished", (end, (api.output, api.output, DONE), Fault.UNFINISHED, None)),
            (f"{api.name} unfinished, with usage", (end, (api.output, CHAT_USAGE, DONE), Fault.UNFINISHED, COUNTED)),
            (f"{api.name} nameless", (end, (data({"text": "a"}), data({"text": "b"}), DONE), None, None)),
        ]  # fmt: skip
    return cases


CASES = dict(whole_cases())


def say_all(end: StreamEnd, blocks: list[Block], *, quick: bool) -> StreamEndWatch:
    """A watch that was told of the blocks; `quick`: as is done where a read is passed on as it came."""
    watch = StreamEndWatch(end)
    for block in blocks:
        if not (quick and watch.says_nothing(block)):
            watch.note(block)
    return watch


@st.composite
def in_blocks(draw: st.DrawFn, events: tuple[bytes, ...]) -> list[Block]:
    """The events with comments strewn in, cut into blocks of complete events."""
    strewn: list[bytes] = []
    for event in events:
        strewn += [COMMENT] * draw(st.sampled_from([0, 0, 0, 1, 2, 5]))
        strewn.append(event)
    blocks: list[Block] = [b""]
    for event in strewn:
        if draw(st.booleans()):
            blocks.append(b"")
        blocks[-1] += event
    return [block for block in blocks if block]


@pytest.mark.parametrize("name", CASES)
@given(draw=st.data(), quick=st.booleans())
def test_fault_and_usage_do_not_depend_on_reads(name: str, draw: st.DataObject, quick: bool) -> None:
    end, events, fault, usage = CASES[name]
    watch = say_all(end, draw.draw(in_blocks(events)), quick=quick)
    assert watch.fault() == fault
    assert watch.usage == usage


@pytest.mark.parametrize("name", CASES)
def test_line_ends_and_spaces_in_json_do_not_matter(name: str) -> None:
    end, events, fault, usage = CASES[name]
    for line_end in (b"\n", b"\r\n", b"\r"):
        for spaced in (False, True):
            blocks = [respell(event, line_end, spaced=spaced) for event in events]
            for reads in (blocks, [b"".join(blocks)]):
                watch = say_all(end, reads, quick=False)
                assert (watch.fault(), watch.usage) == (fault, usage), reads


def respell(event: bytes, line_end: bytes, *, spaced: bool) -> bytes:
    lines = event.removesuffix(b"\n\n").split(b"\n")
    if spaced:
        lines = [
            b"data: " + json.dumps(json.loads(line[6:])).encode() if line.startswith(b"data: {") else line
            for line in lines
        ]
    return line_end.join(lines) + line_end * 2


@pytest.mark.parametrize("api", [CHAT, COMPLETIONS], ids=lambda api: api.name)
def test_choices_may_end_in_any_order(api: Api) -> None:
    """Several choices in one stream finish in their own order; usage comes before or after, `[DONE]` last."""
    ends = [chat_event({"content": ""}, reason) for reason in ("stop", "length")]
    for events in permutations([api.output, *ends, CHAT_USAGE]):
        watch = say_all(ENDS[api.name], [*events, DONE], quick=True)
        assert watch.fault() is None
    for events in permutations([api.output, *ends, api.aborted[0], CHAT_USAGE]):
        watch = say_all(ENDS[api.name], [*events, DONE], quick=True)
        assert watch.fault() is Fault.ABORTED, "one choice that was broken off makes the answer a broken one"


TEMPTING = [
    "[DONE]", "data: [DONE]\n\n", '"finish_reason":"stop"', '{"finish_reason": "abort"}', '"stop_reason":"abort"',
    "message_stop", '"type":"message_stop"', "response.completed", "response.failed", "event: error\n",
    'data: {"error":{"code":500}}\n\n', '"error"', '"usage":{"prompt_tokens":1,"completion_tokens":1}',
]  # fmt: skip


def saying(api: Api, text: str) -> bytes:
    """An output event of `api` whose text is `text`."""
    if api is CHAT:
        return chat_event({"content": text})
    if api is COMPLETIONS:
        return data({"choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": None}]})
    if api is MESSAGES:
        return typed("content_block_delta", {"delta": {"type": "text_delta", "text": text}, "index": 0})
    return typed("response.output_text.delta", {"delta": text, "item_id": "msg_1", "sequence_number": 4})


@pytest.mark.parametrize("text", TEMPTING)
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_what_the_model_writes_ends_nothing(api: Api, text: str) -> None:
    end, event = ENDS[api.name], saying(api, text)
    cut, whole = (api.output, event, api.output), (api.events[0], event, *api.events[1:])
    for reads in ([*cut], [b"".join(cut)]):
        assert say_all(end, reads, quick=False).fault() is Fault.UNFINISHED
    for reads in ([*whole], [b"".join(whole)]):
        watch = say_all(end, reads, quick=False)
        assert watch.fault() is None
        assert watch.usage == CASES[f"{api.name} whole"][3]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_stop_string_of_the_callers_is_not_the_engines_abort(at_once: bool) -> None:
    """vLLM puts the stop string that was met into `stop_reason` of a choice; a caller may stop at "abort"."""
    choice = {"index": 0, "text": "x", "finish_reason": "stop", "stop_reason": "abort"}
    events = [data({"choices": [choice]}), DONE]
    assert say_all(StreamEnd.DONE, [b"".join(events)] if at_once else events, quick=False).fault() is None


def test_an_end_of_any_kind_is_an_end() -> None:
    assert StreamEndWatch(StreamEnd.ANY).fault() is None
    assert say_all(StreamEnd.ANY, [data({"type": "whatever"})], quick=False).fault() is None
    for kind in ("response.completed", "response.incomplete"):
        assert say_all(StreamEnd.RESPONSE_COMPLETED, [typed(kind, {})], quick=True).fault() is None
    assert say_all(StreamEnd.RESPONSE_COMPLETED, [typed("response.failed", {})], quick=True).errored


def test_the_last_usage_counts() -> None:
    counts = [{"prompt_tokens": 11, "completion_tokens": number} for number in range(5)]
    events = [chat_event({"content": "x"}, usage=usage) for usage in counts]
    for reads in (events, [b"".join(events)], [*events, COMMENT]):
        assert say_all(StreamEnd.DONE, reads, quick=False).usage == (11, 4, None)


def test_memory_does_not_grow_with_the_stream() -> None:
    watch, block = StreamEndWatch(StreamEnd.DONE), chat_event({"content": "x" * 1000}, "length")
    for number in range(1000):
        watch.note(block if number % 2 else data({"text": "x" * 1000}))
    assert len(watch._before) + len(watch._last) < 20 * len(block)


@given(before=st.lists(st.sampled_from([CHAT.output, COMMENT, data("[DONE]"), data("data: [DONE]")])),
       space=st.sampled_from([b"", b" "]), line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]))  # fmt: skip
def test_where_done_begins(before: list[bytes], space: bytes, line_end: bytes) -> None:
    block = b"".join(before).replace(b"\n", line_end)
    assert done_offset(block) is None
    assert done_offset(block + b"data:" + space + b"[DONE]" + line_end * 2) == len(block)


def test_the_shapes_are_those_of_one_event_each() -> None:
    """Guards the cases above: an entry that held two events would not be cut between them."""
    for _, events, _, _ in CASES.values():
        assert all(len(events_of(event)) == 1 and event.endswith(b"\n\n") for event in events)
    assert to_json(USAGE) in CHAT_USAGE
