"""The bodies that the routes take, and what is wanted in one neutral form: a prompt, a length, a way to answer."""

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from poise.engine.errors import bad_value, malformed
from poise.engine.text import from_token_ids, pad

DEFAULT_COMPLETION_TOKENS = 16
"""`max_tokens` of `/v1/completions` when the request gives none."""

_encode = msgspec.json.Encoder().encode

BodyType = TypeVar("BodyType")


class StreamOptions(msgspec.Struct):
    """`stream_options` of an OpenAI request."""

    include_usage: bool = False


class Body(msgspec.Struct):
    """What every generating route takes. Fields that the simulation has no use for are skipped."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False
    n: int | None = 1
    temperature: float | None = None
    priority: int = 0
    seed: int | None = None
    cache_salt: str | None = None
    data_parallel_rank: int | None = None


class Message(msgspec.Struct):
    """One turn of a conversation; `content` is text, or parts of which some have text."""

    role: str
    content: Any = None
    tool_calls: Any = None


class ChatBody(Body, kw_only=True):
    """`/v1/chat/completions`, and `/tokenize` with messages."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: Any = None


class CompletionBody(Body, kw_only=True):
    """`/v1/completions`, and `/tokenize` with a prompt."""

    prompt: str | list[Any]
    """Text, token ids, or a list of one of either."""


class ResponsesBody(Body, kw_only=True):
    """`/v1/responses`."""

    input: Any
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: Any = None


class MessagesBody(Body, kw_only=True):
    """`/v1/messages`."""

    messages: list[Message]
    system: Any = None
    tools: Any = None


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    """`/v1/embeddings`."""

    model: str | None = None
    input: str | list[Any]


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """`/detokenize`."""

    model: str | None = None
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request in neutral form. `max_tokens` None leaves the length to the engine."""

    model: str | None
    prompt: bytes
    stream: bool
    include_usage: bool
    max_tokens: int | None
    ignore_eos: bool
    priority: int
    seed: int
    cache_salt: str | None
    rank: int | None


def decode(raw: bytes, decoder: msgspec.json.Decoder[BodyType]) -> BodyType:
    """`raw` decoded. Raises `ApiError` with vLLM's status and type for bad JSON and wrong fields."""
    if not raw:
        raise malformed("{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}", "body")
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise malformed(f"{{'loc': 'body', 'msg': '{error}'}}", "body") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = f"{{'type': 'json_invalid', 'loc': 'body', 'msg': 'JSON decode error', 'ctx': {{'error': '{error}'}}}}"
        raise malformed(text, "body") from None


def read_chat(raw: bytes) -> Wanted:
    """A body of `/v1/chat/completions`."""
    body = decode(raw, _CHAT)
    if not body.messages:
        raise bad_value("Cannot apply chat template to an empty conversation. Provide at least one message.", None)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return _wanted(body, chat_prompt(body.messages, body.tools), max_tokens)


def read_completion(raw: bytes) -> Wanted:
    """A body of `/v1/completions`; one prompt only."""
    body = decode(raw, _COMPLETION)
    max_tokens = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return _wanted(body, plain_prompt(body.prompt), max_tokens)


def read_responses(raw: bytes) -> Wanted:
    """A body of `/v1/responses`."""
    body = decode(raw, _RESPONSES)
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    try:
        messages = msgspec.convert(items, list[Message])
    except msgspec.ValidationError as error:
        raise malformed(f"{{'loc': 'body.input', 'msg': '{error}'}}", "body.input") from None
    if body.instructions:
        messages.insert(0, Message("system", body.instructions))
    return _wanted(body, chat_prompt(messages, body.tools), body.max_output_tokens)


def read_messages(raw: bytes) -> Wanted:
    """A body of `/v1/messages`."""
    body = decode(raw, _MESSAGES)
    messages = [Message("system", body.system), *body.messages] if body.system else body.messages
    return _wanted(body, chat_prompt(messages, body.tools), body.max_tokens)


def read_embeddings(raw: bytes) -> Wanted:
    """A body of `/v1/embeddings`; one input only. The engine computes its prompt and one token."""
    body = decode(raw, _EMBEDDINGS)
    return _wanted(Body(model=body.model, ignore_eos=True), plain_prompt(body.input), 1)


def read_tokenize(raw: bytes) -> Wanted:
    """A body of `/tokenize`: messages or a prompt."""
    keys = decode(raw, _KEYS)
    return read_chat(raw) if "messages" in keys else read_completion(raw)


def read_detokenize(raw: bytes) -> list[int]:
    """The token ids of a body of `/detokenize`."""
    return decode(raw, _DETOKENIZE).tokens


def chat_prompt(messages: list[Message], tools: Any) -> bytes:
    """The canonical text of a conversation up to where the assistant's next words begin."""
    parts = [b"<|tools|>" + _encode(tools)] if tools else []
    for message in messages:
        text = _text(message.content) + (_encode(message.tool_calls) if message.tool_calls else b"")
        if message.role == "assistant":
            # What came before was padded when this answer was asked for, and the answer follows it directly.
            parts = [pad(b"".join([*parts, b"<|assistant|>"])), text]
        else:
            parts.append(b"<|%b|>%b" % (message.role.encode(), text))
    return pad(b"".join([*parts, b"<|assistant|>"]))


def plain_prompt(prompt: str | list[Any]) -> bytes:
    """The text of a completion's prompt, padded to whole tokens. Raises `ApiError` for several prompts or none."""
    if isinstance(prompt, str):
        return pad(prompt.encode())
    if prompt and all(isinstance(number, int) for number in prompt):
        return pad(from_token_ids(prompt))
    if len(prompt) == 1 and isinstance(prompt[0], str | list):
        return plain_prompt(prompt[0])
    raise bad_value(f"this simulated engine takes one text or list of token ids, got {len(prompt)} items", "prompt")


def _wanted(body: Body, prompt: bytes, max_tokens: int | None) -> Wanted:
    if body.stream_options is not None and not body.stream:
        raise bad_value("Stream options can only be defined when `stream=True`.", "stream_options")
    if max_tokens is not None and max_tokens < 1:
        raise bad_value(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens")
    if body.n is not None and body.n != 1:
        raise bad_value(f"n must be at least 1, got {body.n}." if body.n < 1 else "n above 1 is not simulated.", None)
    if body.temperature is not None and body.temperature < 0:
        raise bad_value(f"temperature must be non-negative, got {body.temperature}.", "temperature")
    return Wanted(
        model=body.model,
        prompt=prompt,
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        max_tokens=max_tokens,
        ignore_eos=body.ignore_eos,
        priority=body.priority,
        seed=body.seed or 0,
        cache_salt=body.cache_salt,
        rank=body.data_parallel_rank,
    )


def _text(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode()
    if content is None:
        return b""
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return b"".join(
        text.encode() if isinstance(text, str) else _encode(part) for text, part in zip(texts, parts, strict=True)
    )


_CHAT = msgspec.json.Decoder(ChatBody)
_COMPLETION = msgspec.json.Decoder(CompletionBody)
_RESPONSES = msgspec.json.Decoder(ResponsesBody)
_MESSAGES = msgspec.json.Decoder(MessagesBody)
_EMBEDDINGS = msgspec.json.Decoder(EmbeddingsBody)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeBody)
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])
