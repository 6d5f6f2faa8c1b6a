"""One simulated vLLM server: its routes, its engines, its metrics page."""

import random
from collections.abc import Callable
from email.utils import formatdate

import msgspec

from poise.core.clock import wall_time_s
from poise.engine.answers import Answer, ChatAnswer, CompletionAnswer, EmbeddingAnswer
from poise.engine.answers_typed import MessagesAnswer, ResponsesAnswer
from poise.engine.driver import EngineDriver
from poise.engine.errors import ApiError
from poise.engine.generation import Generator, Reader, check_json
from poise.engine.metrics_page import CONTENT_TYPE, MetricsPage
from poise.engine.protocol import EngineProtocol, Request
from poise.engine.requests import (
    read_chat,
    read_completion,
    read_detokenize,
    read_embeddings,
    read_messages,
    read_responses,
    read_tokenize,
)
from poise.engine.server_metrics import HttpCounts, add_process
from poise.engine.settings import EngineSettings
from poise.engine.text import from_token_ids, token_count, token_ids
from poise.engine.vllm_metrics import VllmMetrics

VERSION = "0.32.0"
"""The vLLM version whose behaviour this follows."""

_encode = msgspec.json.Encoder().encode

Route = Callable[[Request, EngineProtocol], None]


class EngineServer:
    """Answers the requests of all connections to one port. Made inside a running event loop."""

    def __init__(self, settings: EngineSettings, number: int) -> None:
        self.settings = settings
        self.profile = settings.effective_profile()
        self.connections: set[EngineProtocol] = set()
        self.drivers = [EngineDriver(self.profile, settings.speed) for _ in range(settings.data_parallel_size)]
        self._started_at = wall_time_s()
        self._date = (0, b"")
        ids = random.Random(f"{settings.seed}/{number}")
        self._generator = Generator(settings, self.profile, self.drivers, ids)
        self._routes = self._make_routes()
        self._paths = {path for _, path in self._routes}
        self._http = HttpCounts([route for route in self._routes if route[1].startswith("/v1/")])
        self._page = MetricsPage(self._started_at)
        add_process(self._page, self._started_at)
        VllmMetrics(self._page, self.drivers, settings.model, self.profile)
        self._http.add_to(self._page)

    def close(self) -> None:
        """Stop the engines and drop all connections."""
        for driver in self.drivers:
            driver.close()
        for connection in list(self.connections):
            connection.close()

    def connect(self) -> EngineProtocol:
        """The protocol of a new connection."""
        return EngineProtocol(self)

    def date(self) -> bytes:
        """The `date` header, made once a second."""
        second = int(wall_time_s())
        if second != self._date[0]:
            self._date = (second, formatdate(second, usegmt=True).encode())
        return self._date[1]

    def finished(self, request: Request, duration_s: float) -> None:
        """Count an answered request."""
        self._http.finished(request.method, request.path, request.status, duration_s)

    def handle(self, request: Request, connection: EngineProtocol) -> None:
        """Answer `request`, now or when its tokens are there."""
        route = self._routes.get((request.method, request.path))
        if route is not None:
            route(request, connection)
        elif request.path in self._paths:
            allowed = ", ".join(sorted(method for method, path in self._routes if path == request.path))
            extra = b"allow: %b\r\n" % allowed.encode()
            connection.answer(405, b'{"detail":"Method Not Allowed"}', extra=extra)
        else:
            connection.answer(404, b'{"detail":"Not Found"}')

    def _make_routes(self) -> dict[tuple[str, str], Route]:
        return {
            ("GET", "/health"): lambda _, connection: connection.answer(200, b""),
            ("GET", "/ping"): lambda _, connection: connection.answer(200, b""),
            ("POST", "/ping"): lambda _, connection: connection.answer(200, b""),
            ("GET", "/version"): lambda _, connection: connection.answer(200, _encode({"version": VERSION})),
            ("GET", "/load"): self._load,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("POST", "/tokenize"): self._json(self._tokenize),
            ("POST", "/detokenize"): self._json(self._detokenize),
            ("POST", "/v1/chat/completions"): self._generate(read_chat, ChatAnswer),
            ("POST", "/v1/completions"): self._generate(read_completion, CompletionAnswer),
            ("POST", "/v1/embeddings"): self._generate(read_embeddings, EmbeddingAnswer),
            ("POST", "/v1/responses"): self._generate(read_responses, ResponsesAnswer),
            ("POST", "/v1/messages"): self._generate(read_messages, MessagesAnswer),
            ("POST", "/v1/messages/count_tokens"): self._json(self._count_tokens),
            ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
        }

    def _generate(self, read: Reader, kind: type[Answer]) -> Route:
        return lambda request, connection: self._generator.start(request, connection, read, kind)

    def _json(self, make: Callable[[Request], object]) -> Route:
        def route(request: Request, connection: EngineProtocol) -> None:
            try:
                check_json(request)
                connection.answer(200, _encode(make(request)))
            except ApiError as error:
                connection.answer(error.status, error.openai_body())

        return route

    def _load(self, _: Request, connection: EngineProtocol) -> None:
        connection.answer(200, _encode({"server_load": sum(driver.load for driver in self.drivers)}))

    def _metrics(self, _: Request, connection: EngineProtocol) -> None:
        connection.answer(200, self._page.render(), CONTENT_TYPE)

    def _models(self, _: Request, connection: EngineProtocol) -> None:
        model = {
            "id": self.settings.model,
            "object": "model",
            "created": int(self._started_at),
            "owned_by": "vllm",
            "root": self.settings.model,
            "parent": None,
            "max_model_len": self.profile.max_model_len_tokens,
        }
        connection.answer(200, _encode({"object": "list", "data": [model]}))

    def _tokenize(self, request: Request) -> object:
        ids = token_ids(self._generator.read(request, read_tokenize).prompt)
        longest = self.profile.max_model_len_tokens
        return {"count": len(ids), "max_model_len": longest, "tokens": ids, "token_strs": None}

    @staticmethod
    def _detokenize(request: Request) -> object:
        return {"prompt": from_token_ids(read_detokenize(bytes(request.body))).decode("utf-8", "replace")}

    def _count_tokens(self, request: Request) -> object:
        return {"input_tokens": token_count(self._generator.read(request, read_messages).prompt)}

    def _reset_prefix_cache(self, _: Request, connection: EngineProtocol) -> None:
        for driver in self.drivers:
            driver.engine.scheduler.cache.pool.forget()
        connection.answer(200, b"")
