"""Names and their addresses: what a good answer changes, and what a bad one does not."""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import ip_address

from structlog.testing import capture_logs

from poise.app.host_names import HostNames, resolve


class Names:
    """Stands for a name server: `answers` by name; an exception is raised, an event is waited for."""

    def __init__(self, **answers: Sequence[str] | Exception | asyncio.Event) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        answer = self.answers[name]
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return ()
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_an_answer_replaces_the_one_before() -> None:
    server = Names(a=["10.0.0.2", "10.0.0.1", "10.0.0.2"], b=["fd00::1"])
    names = HostNames(server)
    await names.look(["a", "b"])
    assert names.addresses == {"a": ("10.0.0.2", "10.0.0.1"), "b": ("fd00::1",)}
    server.answers["a"] = ["10.0.0.3"]
    await names.look(["a", "b"])
    assert names.addresses == {"a": ("10.0.0.3",), "b": ("fd00::1",)}


async def test_addresses_in_another_order_are_no_change() -> None:
    server = Names(a=["10.0.0.1", "10.0.0.2"])
    names = HostNames(server)
    await names.look(["a"])
    before = names.addresses["a"]
    server.answers["a"] = ["10.0.0.2", "10.0.0.1"]
    await names.look(["a"])
    assert names.addresses["a"] is before


async def test_a_failure_keeps_what_was_known_and_is_said_once() -> None:
    server = Names(a=["10.0.0.1"])
    names = HostNames(server)
    await names.look(["a"])
    with capture_logs() as lines:
        for failure in (socket.gaierror(socket.EAI_AGAIN, "try again"), [], UnicodeError("label too long")):
            server.answers["a"] = failure
            await names.look(["a"])
            assert names.addresses == {"a": ("10.0.0.1",)}
        server.answers["a"] = ["10.0.0.1"]
        await names.look(["a"])
    assert [line["event"] for line in lines] == ["name not found, its addresses are kept", "name found again"]
    assert "try again" in lines[0]["problem"]


async def test_a_name_server_that_says_nothing_holds_up_nobody_else() -> None:
    names = HostNames(Names(slow=asyncio.Event(), quick=["10.0.0.1"]))
    look = asyncio.get_running_loop().create_task(names.look(["slow", "quick"]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert names.addresses == {"quick": ("10.0.0.1",)}
    look.cancel()


async def test_addresses_are_not_looked_up_and_what_nobody_wants_is_forgotten() -> None:
    server = Names(a=["10.0.0.1"], b=["10.0.0.2"])
    names = HostNames(server)
    await names.look(["a", "b", "10.0.0.9", "fd00::1"])
    assert sorted(server.asked) == ["a", "b"]
    assert names.unknown(["a", "c", "10.0.0.9", "::1"]) == {"c"}
    names.forget_all_but(["b"])
    assert names.addresses == {"b": ("10.0.0.2",)}


async def test_the_system_knows_this_machine() -> None:
    found = await resolve("localhost")
    assert found
    assert all(ip_address(address).is_loopback for address in found)
