"""The example that `poise serve` prints."""

import json
import shlex

from poise.app.run import example_request


def test_the_example_is_a_command_that_a_shell_understands() -> None:
    words = shlex.split(example_request(8080, "meta/Llama's"))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8080/v1/chat/completions"]
    body = json.loads(words[-1])
    assert (body["model"], body["stream"], body["messages"][0]["role"]) == ("meta/Llama's", True, "user")


def test_without_a_known_model_it_asks_which_there_are() -> None:
    assert example_request(1, None) == "curl http://127.0.0.1:1/v1/models"
