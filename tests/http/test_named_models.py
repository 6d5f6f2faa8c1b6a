"""Aliases in the whole gateway, as the stock client sees them, and a change of them while it runs."""

import asyncio
from typing import Any

import openai
import pytest

from poise.app.gateway import Gateway
from poise.config.load import load_config
from poise.config.settings import Settings
from poise.core.errors import ConfigError
from poise.engine.settings import EngineSettings
from poise.engine.simulated_engines import SimulatedEngines
from support.wire import until

MODEL = "poise-sim"


def settings_for(urls: list[str], **models: Any) -> Settings:
    given = {"host": "127.0.0.1", "port": 0, "admin.port": 0, "replicas": urls, "telemetry.interval_s": 0.1}
    return load_config(None, {}, given | {f"models.{name}": value for name, value in models.items()}).settings


async def say(client: openai.AsyncOpenAI, model: str) -> str:
    answer = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=2
    )
    return answer.model


async def test_the_stock_client_lists_finds_and_uses_an_alias() -> None:
    async with SimulatedEngines(EngineSettings(port=0, count=1, speed=50.0)) as engines:
        async with Gateway(settings_for(engines.urls, aliases={"gpt-4": MODEL, "gone": "nobody"})) as gateway:
            async with openai.AsyncOpenAI(
                api_key="sk-1", base_url=f"http://127.0.0.1:{gateway.port}/v1", max_retries=0
            ) as client:
                await until(lambda: bool(gateway.fleet.models()), "the engine's models")
                assert [model.id for model in (await client.models.list()).data] == [MODEL, "gpt-4"]
                alias = await client.models.retrieve("gpt-4")
                assert (alias.id, alias.owned_by, alias.object) == ("gpt-4", "poise", "model")
                assert await say(client, "gpt-4") == await say(client, MODEL) == MODEL
                with pytest.raises(openai.NotFoundError, match="served are gone, gpt-4, poise-sim"):
                    await say(client, "gpt-5")
                with pytest.raises(openai.NotFoundError):
                    await client.models.retrieve("gone")

                gateway.apply(settings_for(engines.urls, aliases={"gpt-5": MODEL}, fallbacks={"other": [MODEL]}))
                assert [model.id for model in (await client.models.list()).data] == [MODEL, "gpt-5"]
                assert await say(client, "gpt-5") == await say(client, "other") == MODEL
                with pytest.raises(openai.NotFoundError):
                    await say(client, "gpt-4")

                unchecked = settings_for(engines.urls).model_copy(
                    update={"models": Settings.model_validate({"models": {"aliases": {"a": "a"}}}).models}
                )
                with pytest.raises(ConfigError, match="stands for itself"):
                    gateway.apply(unchecked)
                assert await say(client, "gpt-5") == MODEL, "a wrong configuration changes nothing"
    await asyncio.sleep(0)
