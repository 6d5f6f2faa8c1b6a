"""`poise top` against real admin ports, those of others, and none at all."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from poise.app.gateway import Gateway
from poise.app.top.admin_api import AdminApi, AdminError
from poise.app.top.run import show_live, show_once
from poise.config.load import load_config
from poise.core.errors import ConfigError
from poise.core.secret import Secret
from support.apis import CHAT
from support.http_bytes import request
from support.raw_client import client
from support.scripted_replica import ScriptedReplica
from support.scripts import answers


@asynccontextmanager
async def serving(*replicas: ScriptedReplica, **settings: Any) -> AsyncIterator[Gateway]:
    """A whole gateway over the replicas."""
    overrides = {"host": "127.0.0.1", "port": 0, "admin.port": 0, "replicas": [
        f"http://127.0.0.1:{replica.port}" for replica in replicas
    ]}  # fmt: skip
    async with Gateway(load_config(None, {}, overrides | settings).settings) as gateway:
        yield gateway


def console() -> Console:
    return Console(file=StringIO(), width=200)


def text_of(shown: Console) -> str:
    return shown.file.getvalue()  # type: ignore[attr-defined, no-any-return]


async def test_one_look_at_a_real_gateway_as_table_and_as_json() -> None:
    async with ScriptedReplica(answers()) as one, ScriptedReplica(answers()) as two, serving(one, two) as gateway:
        api, shown = AdminApi(f"http://127.0.0.1:{gateway.admin_port}/"), console()
        showing = asyncio.create_task(asyncio.to_thread(show_once, api, 1.0, shown, as_json=True))
        async with client(gateway.port) as caller:
            while not showing.done():
                await caller.ask(request(body=CHAT.request_body(stream=False)))
        await showing
        seen = json.loads(text_of(shown))
        assert seen["gateway"]["requests_per_s"] > 0
        assert seen["gateway"]["first_output_p50_s"] > 0
        assert seen["gateway"]["errors_per_s"] == 0
        assert [replica["name"] for replica in seen["replicas"]] == ["r1", "r2"]
        assert sum(replica["requests_per_s"] for replica in seen["replicas"]) > 0
        shown = console()
        await asyncio.to_thread(show_once, api, 0.0, shown, as_json=False)
        assert "\n r1 " in text_of(shown)
        assert "soft_affinity" in text_of(shown)


async def test_the_live_view_outlives_its_gateway() -> None:
    shown = console()
    async with ScriptedReplica(answers()) as one, serving(one) as gateway:
        api = AdminApi(f"http://127.0.0.1:{gateway.admin_port}")
        looks = 0
        fleet = api.fleet

        def three_times() -> dict[str, Any]:
            nonlocal looks
            looks += 1
            if looks == 2:
                raise AdminError("gone for a moment")
            if looks == 4:
                raise KeyboardInterrupt
            return fleet()

        api.fleet = three_times  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            await asyncio.to_thread(show_live, api, 0.0, shown)
    assert "r1" in text_of(shown)


async def test_the_key_is_sent_and_its_absence_explained() -> None:
    settings = {"admin.key_env": "TOP_TEST_KEY"}
    os.environ["TOP_TEST_KEY"] = "sk-admin"
    try:
        async with ScriptedReplica(answers()) as one, serving(one, **settings) as gateway:
            url = f"http://127.0.0.1:{gateway.admin_port}"
            assert (await asyncio.to_thread(AdminApi(url, Secret("sk-admin")).fleet))["replicas"]
            for key, told in ((None, "asks for a key"), (Secret("wrong"), "does not take the key in POISE_ADMIN_KEY")):
                with pytest.raises(AdminError, match=told) as error:
                    await asyncio.to_thread(AdminApi(url, key).fleet)
                assert "sk-" not in str(error.value)
    finally:
        del os.environ["TOP_TEST_KEY"]


async def test_what_is_no_admin_port_is_said_to_be_none() -> None:
    async with ScriptedReplica(answers()) as one, serving(one) as gateway:
        for port in (gateway.port, one.port):
            with pytest.raises(AdminError, match="is not the admin port of a gateway"):
                await asyncio.to_thread(AdminApi(f"http://127.0.0.1:{port}").fleet)


@pytest.mark.parametrize(
    "url", ["", "x", "ftp://h:1", "http://", "http://h:99999", "http://h:1/path", "http://u:p@h:1"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        AdminApi(url)


def test_nobody_there_is_one_line_and_a_hint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "poise", "top", "--once", "--admin", f"http://127.0.0.1:{port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"error: the admin port at http://127.0.0.1:{port} does not answer: connection refused"
    )
    assert "hint: is the gateway running?" in done.stderr
