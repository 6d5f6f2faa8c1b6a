"""No key is shown in any log, metric, page, error or answer, however a request ends and wherever the key came from."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

import pytest

from poise.config.load import load_config
from poise.config.show import show_config
from support.http_bytes import answer, chunked, head
from support.scripted_replica import Exchange, ScriptedReplica, closed_port
from support.serve_command import admin_port, data_port, serve_command

CALLER, WRONG, ENGINE, ADMIN = "sk-CALLER-7f3a", "sk-WRONG-11aa", "sk-ENGINE-9b1c", "sk-ADMIN-55dd"
FORMS = [form for key in (CALLER, WRONG, ENGINE, ADMIN) for form in (key, b64encode(key.encode()).decode().rstrip("="))]


async def talkative(exchange: Exchange) -> None:
    """An engine that repeats what it was sent, as some do: in an answer, in an error, and in an error's event."""
    wanted = exchange.head.value("x-want") or b"200"
    sent = [b": ".join(pair).decode("latin-1") for pair in exchange.head.headers]
    coded = [b64encode(value.removeprefix(b"Bearer ")).decode() for _, value in exchange.head.headers]
    said = json.dumps({"choices": [], "error": {"message": f"you sent {sent} {coded} to {exchange.target!r}"}}).encode()
    if wanted == b"hang":
        await exchange.hang()
    elif wanted == b"event":
        events = chunked([b"data: %b\n\n" % said, b"data: [DONE]\n\n"])
        lines = [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")]
        await exchange.write(head("HTTP/1.1 200 OK", lines) + events)
    else:
        await exchange.write(answer(int(wanted), said, headers=[("X-Echo", ", ".join(sent))]))


async def ask(port: int, path: str, key: str | None, body: object = None, **headers: str) -> tuple[int, str]:
    """Status and everything else of one answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = b"" if body is None else json.dumps(body).encode()
    lines = [("host", "127.0.0.1"), ("connection", "close"), ("content-length", str(len(sent)))]
    lines += [(name.replace("_", "-"), value) for name, value in headers.items()]
    lines += [("authorization", f"Bearer {key}")] if key else []
    writer.write(head(f"{'POST' if sent else 'GET'} {path} HTTP/1.1", lines) + sent)
    got = await reader.read()
    writer.close()
    return int(got.split()[1]), got.decode("latin-1")


def leaks(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(where, form) for where, text in texts.items() for form in FORMS if form in text]


@pytest.mark.timeout(120)
async def test_no_key_is_shown_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", ENGINE)
    monkeypatch.setenv("POISE_ADMIN_KEY", ADMIN)
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"name": "team-a", "key": CALLER}]}))
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    with closed_port() as nobody:
        async with ScriptedReplica(talkative) as replica:
            entries = [
                {"url": f"http://127.0.0.1:{port}", "name": name, "model": name, "api_key_env": "ENGINE_KEY"}
                for name, port in (("m", replica.port), ("n", nobody.getsockname()[1]))
            ]
            config = tmp_path / "poise.yaml"
            config.write_text(json.dumps({
                "replicas": entries, "admin": {"key_env": "POISE_ADMIN_KEY"}, "keys": {"file": str(keys)},
                "log": {"level": "debug", "requests": str(tmp_path / "requests.jsonl")},
                "timeouts": {"first_output_s": 0.5}, "retry": {"attempts": 1},
            }))  # fmt: skip
            texts: dict[str, str] = {}
            async with serve_command("--config", str(config)) as (process, lines):
                port, admin = data_port(lines), admin_port(lines)
                for want, status in (
                    ("200", 200),
                    ("400", 400),
                    ("401", 502),
                    ("403", 502),
                    ("500", 500),
                    ("hang", 504),
                ):
                    got, texts[f"engine {want}"] = await ask(port, "/v1/chat/completions", CALLER, chat, x_want=want)
                    assert got == status, texts[f"engine {want}"]
                stream = {**chat, "stream": True}
                for name, path, key, body in (
                    ("event", "/v1/chat/completions", CALLER, stream),
                    ("wrong key", "/v1/chat/completions", WRONG, chat),
                    ("no key but in the query", f"/v1/chat/completions?api_key={CALLER}", None, chat),
                    ("query", f"/v1/chat/completions?api_key={CALLER}&a=1", CALLER, chat),
                    ("refused connection", f"/v1/chat/completions?api_key={CALLER}", CALLER, {**chat, "model": "n"}),
                    ("unknown path", f"/nothing?api_key={CALLER}", CALLER, None),
                ):
                    want = "event" if name == "event" else "200"
                    texts[name] = (await ask(port, path, key, body, x_want=want))[1]
                for path in ("/metrics", "/api/fleet", "/api/decisions", f"/api/nothing?key={ADMIN}"):
                    texts[path] = (await ask(admin, path, ADMIN))[1]
                    texts[f"{path} refused"] = (await ask(admin, path, WRONG))[1]
                texts["added"] = (await ask(admin, "/api/replicas", ADMIN, {"url": f"http://u:{ENGINE}@h/?k={ADMIN}"}))[
                    1
                ]
                config.write_text(config.read_text().replace('"name": "n"', '"name": "n2"'))
                process.send_signal(1)
                await ask(port, "/health", None)
                process.terminate()
                stdout, stderr = await process.communicate()
                texts["log"], texts["stdout"] = "\n".join(lines) + stderr.decode(), stdout.decode()
            texts["request log"] = (tmp_path / "requests.jsonl").read_text()
            assert "configuration applied" in texts["log"]
            assert texts["request log"].count("\n") >= 8
            seen = [(exchange.target, exchange.head.value("authorization")) for exchange in replica.requests]
            assert {key for _, key in seen} == {f"Bearer {ENGINE}".encode()}
            assert not [target for target, _ in seen if CALLER.encode() in target]
    assert leaks(texts) == []


def test_the_printed_configuration_holds_no_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"name": "team-a", "key": CALLER}]}))
    environment = {"ENGINE_KEY": ENGINE, "POISE_ADMIN_KEY": ADMIN}
    overrides = {
        "replicas": [{"url": "https://h", "api_key_env": "ENGINE_KEY"}],
        "admin.key_env": "POISE_ADMIN_KEY",
        "keys.file": str(keys),
    }
    loaded = load_config(None, environment, overrides)
    assert leaks({"shown": show_config(loaded), "repr": repr(loaded), "inputs": repr(loaded.settings)}) == []
