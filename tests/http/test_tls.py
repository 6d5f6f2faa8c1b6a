"""TLS on both sides: what holds without it holds with it, whose certificates are believed, who is shown which key."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import test_framing
import test_held_streams
import test_limits
import test_request_bodies
import test_streams
import test_websocket

from poise.app.gateway import Gateway
from poise.config.load import ConfigInputs
from poise.core.errors import ConfigError
from support.certificates import Authority, authority, tls_everywhere
from support.gateway import gateway
from support.http_bytes import answer, head
from support.scripted_replica import Exchange, ScriptedReplica
from support.wire import PeerGone, until

SCENARIOS = (
    test_framing.test_pipelined_requests_are_answered_in_order,
    test_framing.test_a_stream_is_framed_anew_but_not_held_back,
    test_held_streams.test_a_long_plain_answer_is_passed_on_whole,
    test_limits.test_a_request_that_stops_is_408_and_others_are_not_held_up,
    test_limits.test_an_idle_connection_is_closed_in_silence,
    test_limits.test_a_caller_that_stops_reading_its_answer_is_given_up,
    test_request_bodies.test_a_form_with_a_file,
    test_streams.test_a_slow_reader_is_not_a_silent_replica,
    test_streams.test_a_slow_reader_that_leaves_frees_its_replica,
    test_streams.test_pipelined_requests_of_a_caller_that_reads_nothing_are_not_piled_up,
    test_websocket.test_bytes_go_both_ways_unaltered_in_any_cuts,
    test_websocket.test_what_the_replica_says_right_after_its_acceptance,
    test_websocket.test_a_gateway_that_stops_ends_the_tunnel_at_the_deadline,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_what_holds_without_tls_holds_with_it(scenario: Callable[[], Awaitable[None]]) -> None:
    with tls_everywhere():
        await scenario()


@pytest.mark.parametrize("slow", ["caller", "replica"])
async def test_a_slow_side_of_a_tunnel_holds_the_other_up(slow: str) -> None:
    """In small writes: one large one is encrypted whole, by whoever makes it."""
    piece, bound_bytes = bytes(65536), 16 << 20
    release = asyncio.Event()
    sent = 0

    async def send(write: Callable[[bytes], Awaitable[None]]) -> None:
        nonlocal sent
        try:
            while not release.is_set():
                await write(piece)
                sent += len(piece)
                await asyncio.sleep(0)
        except PeerGone:
            pass

    async def script(exchange: Exchange) -> None:
        await exchange.write(test_websocket.ACCEPTED)
        if slow == "replica":
            exchange.wire.transport.pause_reading()
            await release.wait()
            exchange.wire.transport.resume_reading()
        else:
            await send(exchange.write)
        await exchange.hang()

    with tls_everywhere():
        async with ScriptedReplica(script, send_buffer_bytes=1 << 16) as replica, gateway(replica) as poise:
            caller = await poise.client(receive_buffer_bytes=1 << 14)
            await caller.send(test_websocket.HANDSHAKE)
            await caller.head()
            wire = replica.requests[0].wire if slow == "caller" else caller.wire
            if slow == "caller":
                caller.stop_reading()
                sending = None
            else:
                sending = asyncio.get_running_loop().create_task(send(caller.send_more), name="kit sender")
            await until(lambda: wire.write_paused, "the sender to be held up")
            await asyncio.sleep(0.3)
            assert wire.write_paused
            assert sent < bound_bytes
            release.set()
            if slow == "caller":
                caller.read_again()
            taker = caller.wire if slow == "caller" else replica.requests[0].wire
            await until(lambda: len(taker.received) >= sent, "all bytes")
            if sending is not None:
                await sending


# -- whose certificates are believed, and what is shown


async def echoes(exchange: Exchange) -> None:
    """Answer with what came."""
    lines = exchange.head.first_line + b"\n" + b"\n".join(b": ".join(pair) for pair in exchange.head.headers)
    await exchange.write(answer(200, json.dumps({"choices": [], "saw": lines.decode()}).encode()))


def config(folder: Path, replica: dict[str, Any], **more: Any) -> ConfigInputs:
    path = folder / "poise.yaml"
    values = {"replicas": [replica], "membership": {"check_interval_s": 0.02}, "admin": {"port": 0}, **more}
    path.write_text(json.dumps(values))
    return ConfigInputs(str(path), {"REPLICA_KEY": "sk-ENGINE-9b1c"}, {"host": "127.0.0.1", "port": 0})


async def ask(port: int, tls: ssl.SSLContext | None = None, path: str = "/v1/embeddings", **headers: str) -> Any:
    """Status and JSON of one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    lines = [(name.replace("_", "-"), value) for name, value in headers.items()]
    body = b"{}" if path.startswith("/v1") else b""
    first = f"{'POST' if body else 'GET'} {path} HTTP/1.1"
    writer.write(
        head(first, [("host", "x"), ("connection", "close"), ("content-length", str(len(body))), *lines]) + body
    )
    got = await reader.read()
    writer.close()
    return int(got.split()[1]), json.loads(got.partition(b"\r\n\r\n")[2])


async def test_a_replicas_certificate_must_be_signed_and_be_its_own(tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    with tls_everywhere():
        replica = ScriptedReplica(echoes)
        async with replica:
            url = f"https://127.0.0.1:{replica.port}"
            for ca_file, wanted in ((authority().ca_file, 200), (stranger.ca_file, 502), (None, 502)):
                inputs = config(tmp_path, {"url": url, "ca_file": ca_file and str(ca_file)})
                async with Gateway(inputs.load().settings, inputs=inputs) as poise:
                    assert (await ask(poise.port))[0] == wanted, ca_file
            inputs = config(
                tmp_path, {"url": url.replace("127.0.0.1", "127.0.0.9"), "ca_file": str(authority().ca_file)}
            )
            assert replica.garbage == []


async def test_the_name_in_the_url_is_checked_whatever_address_it_leads_to(tmp_path: Path) -> None:
    async def everywhere(name: str) -> list[str]:
        return ["127.0.0.1"]

    with tls_everywhere():
        async with ScriptedReplica(echoes) as replica:
            for name, wanted in (("engine.test", 200), ("other.test", 502)):
                entry = {
                    "url": f"https://{name}:{replica.port}",
                    "ca_file": str(authority().ca_file),
                    "each_address": True,
                }
                inputs = config(tmp_path, entry)
                async with Gateway(inputs.load().settings, inputs=inputs, resolve=everywhere) as poise:
                    assert (await ask(poise.port))[0] == wanted, name


async def test_a_replica_is_shown_its_own_key_and_nobody_elses(tmp_path: Path) -> None:
    async with ScriptedReplica(echoes) as replica, ScriptedReplica(echoes) as other:
        entry = {"url": f"http://127.0.0.1:{replica.port}/api/v1", "name": "paid", "api_key_env": "REPLICA_KEY"}
        inputs = config(tmp_path, entry)
        async with Gateway(inputs.load().settings, inputs=inputs) as poise:
            caller = {
                "authorization": "Bearer sk-CALLER-7f3a",
                "x_api_key": "sk-CALLER-7f3a",
                "api_key": "sk-CALLER-7f3a",
            }
            status, got = await ask(poise.port, path="/v1/embeddings?a=%2F&api_key=sk-CALLER-7f3a&b", **caller)
            assert status == 200
            (asked,) = [e for e in replica.requests if e.target.startswith(b"/api/v1/embeddings")]
            assert asked.target == b"/api/v1/embeddings?a=%2F&b"
            assert [pair for pair in asked.head.headers if b"sk-" in pair[1]] == [
                (b"authorization", b"Bearer sk-ENGINE-9b1c")
            ]
            assert "ENGINE" not in got["saw"], "what it repeats is masked"
            await until(
                lambda: len({e.target for e in replica.requests}) >= 4, "metrics, models and health to be asked for"
            )
            assert {e.head.value("authorization") for e in replica.requests} == {b"Bearer sk-ENGINE-9b1c"}
            assert {e.target for e in replica.requests} >= {b"/api/v1/models", b"/api/metrics", b"/api/health"}
            poise.membership.add({"url": f"http://127.0.0.1:{other.port}", "name": "free"})
            poise.membership.drain("paid")
            status, got = await ask(poise.port, path="/v1/embeddings?api_key=sk-CALLER-7f3a", **caller)
            assert "sk-ENGINE" not in got["saw"]
            assert "authorization: Bearer sk-CALLER-7f3a" in got["saw"], "which it may need: the gateway asks for none"


async def test_the_admin_api_cannot_send_secrets_anywhere_without_a_key_of_its_own(tmp_path: Path) -> None:
    async with ScriptedReplica(echoes) as replica:
        inputs = config(tmp_path, {"url": f"http://127.0.0.1:{replica.port}"})
        async with Gateway(inputs.load().settings, inputs=inputs) as poise:
            with pytest.raises(
                ConfigError, match="api_key_env can be given here only if the admin port asks for a key"
            ):
                poise.membership.add({"url": "http://evil.test", "api_key_env": "REPLICA_KEY"})


def test_a_key_or_a_certificate_that_is_not_there_is_an_error_at_the_start(tmp_path: Path) -> None:
    for entry, message in (
        (
            {"url": "http://h", "api_key_env": "MISSING"},
            "environment variable MISSING, which is to hold the key of replica r1",
        ),
        ({"url": "https://h", "ca_file": str(tmp_path / "none.pem")}, r"CA file .*none\.pem cannot be used"),
        ({"url": "https://h", "cert_file": str(authority().ca_file)}, "certificate .* with key .* cannot be used"),
        ({"url": "http://h", "ca_file": "x"}, "is not https, which the certificates are for"),
        ({"url": "https://h", "key_file": "x"}, "key_file is given without cert_file"),
    ):
        with pytest.raises(ConfigError, match=message) as raised:
            Gateway(config(tmp_path, entry).load().settings)
        assert raised.value.hint
    with pytest.raises(ConfigError, match="tls holds no cert_file"):
        Gateway(config(tmp_path, {"url": "http://h"}, tls={"key_file": "x"}).load().settings)


# -- the gateway's own ports


async def test_both_ports_speak_https_and_may_ask_for_certificates(tmp_path: Path) -> None:
    cert, key = (str(path) for path in authority().sign("port"))
    theirs = authority().trust
    theirs.load_cert_chain(*authority().sign("caller"))
    async with ScriptedReplica(echoes) as replica:
        ports = {"cert_file": cert, "key_file": key}
        inputs = config(
            tmp_path,
            {"url": f"http://127.0.0.1:{replica.port}"},
            tls={**ports, "client_ca_file": str(authority().ca_file)},
            admin={"port": 0, "tls": ports},
        )
        async with Gateway(inputs.load().settings, inputs=inputs) as poise:
            assert (await ask(poise.port, theirs))[0] == 200
            assert (await ask(poise.admin_port, authority().trust, path="/api/fleet"))[0] == 200
            for context in (authority().trust, None):
                with pytest.raises((OSError, IndexError)):
                    await ask(poise.port, context)
            assert len(replica.requests) >= 1


async def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    cert, key = authority().sign("renewed")
    async with ScriptedReplica(echoes) as replica:
        inputs = config(
            tmp_path, {"url": f"http://127.0.0.1:{replica.port}"}, tls={"cert_file": str(cert), "key_file": str(key)}
        )
        async with Gateway(inputs.load().settings, inputs=inputs) as poise:

            async def serial() -> str:
                _, writer = await asyncio.open_connection("127.0.0.1", poise.port, ssl=authority().trust)
                found: str = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
                writer.close()
                return found

            first = await serial()
            cert.write_text("half a certificate")
            await asyncio.sleep(0.2)
            assert await serial() == first, "the one before stays"
            authority().sign("renewed")
            async with asyncio.timeout(10):
                while await serial() == first:
                    pass
            assert (await ask(poise.port, authority().trust))[0] == 200
