"""vLLM's error answers: which status, and which of its three shapes."""

import msgspec

_encode = msgspec.json.Encoder().encode


class ApiError(Exception):
    """A request that is answered with an error. `kind` and `param` are what vLLM puts into `type` and `param`."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param

    def openai_body(self) -> bytes:
        """`{"error": {...}}`, as all routes but Anthropic's answer, and as it stands inside a stream."""
        return _encode(
            {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}
        )

    def anthropic_body(self) -> bytes:
        """`{"type": "error", ...}`, as `/v1/messages` answers."""
        return _encode({"type": "error", "error": {"type": self.kind, "message": self.message}})


def malformed(message: str, param: str | None) -> ApiError:
    """A body that is not what the route takes: bad JSON, a missing field, a wrong type."""
    return ApiError(400, "Bad Request", f"1 validation error:\n  {message}", param)


def bad_value(message: str, param: str | None) -> ApiError:
    """A body that is understood but asks for something impossible."""
    return ApiError(400, "BadRequestError", message, param)


def unknown_model(asked: str, served: str) -> ApiError:
    """The model is another one than the server's."""
    return ApiError(404, "NotFoundError", f"The model `{asked}` does not exist. Valid aliases: {served}.", "model")


def busy() -> ApiError:
    """A queue limit is reached."""
    return ApiError(
        503,
        "Service Unavailable",
        "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance.",
    )


def rank_out_of_range(rank: int, ranks: int) -> ApiError:
    """`X-data-parallel-rank` names no engine."""
    return ApiError(400, "BadRequestError", f"data_parallel_rank {rank} is out of range [0, {ranks}).")
