"""One caller's request, read whole: what is sent on and what the gateway itself needs of it."""

from typing import TYPE_CHECKING, Final

from poise.admission.api_key import ApiKey
from poise.admission.key_limits import KeyUse
from poise.proxy.routes import Route
from poise.wire.facts import SESSION_HEADERS, USER_HEADERS
from poise.wire.http import HOP_BY_HOP, connection_tokens, without


class HeaderKind:
    """Why the gateway looks at a header; those without a kind are sent on as they came. Numbers, for speed."""

    DROPPED: Final = 1
    HOST: Final = 2
    CODING: Final = 3
    CONNECTION: Final = 4
    UPGRADE: Final = 5
    LENGTH: Final = 6
    EXPECT: Final = 7
    CREDENTIAL: Final = 8
    REQUEST_ID: Final = 9
    RANK: Final = 10
    ORIGIN: Final = 11
    CONTENT_ENCODING: Final = 12
    SESSION: Final = 13
    USER: Final = 14
    PRIORITY: Final = 15
    IDEMPOTENCY_KEY: Final = 16


CLAIMS = frozenset(
    {
        b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-prefix",
        b"x-forwarded-proto", b"x-forwarded-server", b"x-poise-reason", b"x-poise-replica", b"x-real-ip",
    }
)  # fmt: skip
"""What a caller may say but a replica must not believe: who asked, under which name, and what the gateway decided."""

HEADER_KINDS: dict[bytes, int] = {
    **dict.fromkeys(HOP_BY_HOP | CLAIMS, HeaderKind.DROPPED),
    b"host": HeaderKind.HOST,
    b"transfer-encoding": HeaderKind.CODING,
    b"content-length": HeaderKind.LENGTH,
    b"connection": HeaderKind.CONNECTION,
    b"upgrade": HeaderKind.UPGRADE,
    b"expect": HeaderKind.EXPECT,
    b"authorization": HeaderKind.CREDENTIAL,
    b"x-api-key": HeaderKind.CREDENTIAL,
    b"api-key": HeaderKind.CREDENTIAL,
    b"x-request-id": HeaderKind.REQUEST_ID,
    b"x-data-parallel-rank": HeaderKind.RANK,
    b"origin": HeaderKind.ORIGIN,
    b"x-poise-priority": HeaderKind.PRIORITY,
    b"content-encoding": HeaderKind.CONTENT_ENCODING,
    b"idempotency-key": HeaderKind.IDEMPOTENCY_KEY,
    **dict.fromkeys(SESSION_HEADERS, HeaderKind.SESSION),
    **dict.fromkeys(USER_HEADERS, HeaderKind.USER),
}
# Some servers take an underscore for a hyphen: `Content_Length` must not get past where `Content-Length` does not.
HEADER_KINDS |= {
    name.replace(b"-", b"_"): HeaderKind.DROPPED
    for name in HEADER_KINDS
    if name.replace(b"-", b"_") not in HEADER_KINDS
}
_HOST_BYTES = bytes({*b"-.:[]%_~!$&'()*+;="} | {*range(48, 58), *range(65, 91), *range(97, 123)})
"""What a Host header may hold (RFC 3986 3.2.2): no user, no path, no list."""

if TYPE_CHECKING:
    from poise.admission.idempotency import Execution
    from poise.core.errors import Refusal
    from poise.fleet.replica import Replica
    from poise.proxy.local import LocalAnswer

KEY_PARAMETERS = frozenset({b"api_key", b"api-key", b"apikey", b"access_token"})
"""What callers call a key in a query, where it does not belong."""

_PLAIN_CONNECTION = frozenset({b"keep-alive", b"close", b"upgrade", b""})
MAX_REQUEST_ID_BYTES = 128


class IncomingRequest:
    """A request as it is parsed. `head` is ready to be joined into the head that a replica is sent."""

    __slots__ = (
        "_session_rank", "_user_rank", "asked_model", "body", "charged_tokens", "coding", "connection", "credentials",
        "declared_bytes", "encoded", "execution", "expects_continue", "fallback_note", "fallbacks", "head", "home",
        "hosts", "http10", "idempotency_key", "keep_alive", "key", "key_use", "method", "origin", "own_answer", "path",
        "priority", "priority_header", "rank", "request_id", "route", "session_key", "target", "upgrade", "user_key",
    )  # fmt: skip

    def __init__(self) -> None:
        self.target = b""
        self.method = b""
        self.path = b""
        self.route: Route | None = None
        self.head: list[bytes] = []
        """Headers to send on, flat: name, `: `, value, line end."""
        self.body = b""
        self.own_answer: LocalAnswer | Refusal | None = None
        """The gateway's own answer, None if the request is for a replica."""
        self.hosts = 0
        self.coding = b""
        self.declared_bytes = 0
        """`Content-Length` as the caller gave it; the parser has checked that it is a number."""
        self.connection: bytes | None = None
        self.upgrade: bytes | None = None
        self.credentials: list[tuple[bytes, bytes]] = []
        self.rank: bytes | None = None
        self.key: ApiKey | None = None
        self.key_use: KeyUse | None = None
        """Where this request is charged to its key, if it is."""
        self.charged_tokens = 0
        self.priority_header: bytes | None = None
        self.priority = 0
        self.request_id = b""
        self.origin: bytes | None = None
        self.encoded = False
        self.idempotency_key: bytes | None = None
        self.expects_continue = False
        self.http10 = False
        self.keep_alive = True
        self.session_key: bytes | None = None
        self.user_key: bytes | None = None
        self._session_rank = len(SESSION_HEADERS)
        self._user_rank = len(USER_HEADERS)
        self._read_whole()

    def _read_whole(self) -> None:
        """What is found out when all of it is there."""
        self.asked_model: str | None = None
        """The name that the caller gave the model, if the body names another one now."""
        self.fallbacks: tuple[str, ...] = ()
        """Models that may answer instead, those not yet tried."""
        self.fallback_note = ""
        """Added to the reason for choosing a replica, if another model answers instead."""
        self.home: Replica | None = None
        """The replica that has stored the response which the request is about."""
        self.execution: Execution | None = None
        """What is kept of it under its idempotency key, None for a request that has none."""

    def add_header(self, name: bytes, value: bytes) -> None:
        """Take one header as the parser gives it."""
        kind = HEADER_KINDS.get(name.lower())
        if kind is None:
            self.head += (name, b": ", value, b"\r\n")
        elif kind != HeaderKind.DROPPED:
            self._special(kind, name, value)

    def _special(self, kind: int, name: bytes, value: bytes) -> None:
        if kind == HeaderKind.HOST:
            self.hosts += 2 if value.translate(None, _HOST_BYTES) else 1
        elif kind == HeaderKind.LENGTH:
            self.declared_bytes = int(value)
        elif kind == HeaderKind.CREDENTIAL:
            self.credentials.append((name, value))
        elif kind == HeaderKind.RANK:
            self.rank = value
        elif kind == HeaderKind.PRIORITY:
            self.priority_header = value
        elif kind == HeaderKind.CONNECTION:
            self.connection = value if self.connection is None else self.connection + b"," + value
        elif kind == HeaderKind.UPGRADE:
            self.upgrade = value.lower()
        elif kind == HeaderKind.CODING:
            self.coding = value.lower() if not self.coding else b"several"
        elif kind == HeaderKind.EXPECT:
            self.expects_continue = value.lower() == b"100-continue"
        elif kind == HeaderKind.REQUEST_ID:
            if 0 < len(value) <= MAX_REQUEST_ID_BYTES and value.isascii() and value.decode().isprintable():
                self.request_id = value
        else:
            self._noted_and_sent_on(kind, name, value)

    def _noted_and_sent_on(self, kind: int, name: bytes, value: bytes) -> None:
        self.head += (name, b": ", value, b"\r\n")
        if kind == HeaderKind.SESSION:
            rank = SESSION_HEADERS.index(name.lower())
            if value and rank < self._session_rank:
                self.session_key, self._session_rank = value, rank
        elif kind == HeaderKind.USER:
            rank = USER_HEADERS.index(name.lower())
            if value and rank < self._user_rank:
                self.user_key, self._user_rank = value, rank
        elif kind == HeaderKind.ORIGIN:
            self.origin = value
        elif kind == HeaderKind.IDEMPOTENCY_KEY:
            self.idempotency_key = value if self.idempotency_key is None else self.idempotency_key + b"," + value
        elif kind == HeaderKind.CONTENT_ENCODING:
            self.encoded = value.lower() not in (b"", b"identity")

    def head_complete(self) -> None:
        """All headers are in: drop those that `Connection` names, and split the target."""
        if self.connection is not None:
            named = connection_tokens(self.connection) - _PLAIN_CONNECTION
            if named:
                self.head = without(self.head, named)
        target = self.target
        if not target.startswith(b"/") and b"://" in target:
            # absolute-form (RFC 9112 3.2.2): what follows the authority is the path
            _, _, rest = target.partition(b"://")
            authority, mark, query = rest.partition(b"?")
            slash = authority.find(b"/")
            self.target = target = (authority[slash:] if slash >= 0 else b"/") + mark + query
        self.path = target.partition(b"?")[0]

    def header(self, name: bytes) -> bytes | None:
        """The value of a header that is sent on, by its lower-case name; the first if there are several."""
        head = self.head
        for index in range(0, len(head), 4):
            if head[index].lower() == name:
                return head[index + 2]
        return None

    @property
    def key_name(self) -> str | None:
        """The name of the caller's API key, None if it needs none."""
        return self.key.name if self.key is not None else None

    @property
    def has_body(self) -> bool:
        """Whether the head announces a body."""
        return self.declared_bytes > 0 or bool(self.coding)

    @property
    def head_bytes(self) -> int:
        """Size of the parts of the head that are kept."""
        return len(self.target) + sum(map(len, self.head))

    @property
    def wants_websocket(self) -> bool:
        """Whether this is a WebSocket handshake (RFC 6455 4.1) at the one path that takes one."""
        realtime = self.method == b"GET" and self.path == b"/v1/realtime" and not self.has_body
        return realtime and self.upgrade == b"websocket" and b"upgrade" in (self.connection or b"").lower()


def without_keys(target: bytes) -> bytes:
    """`target` without the parameters of its query that hold the caller's key; all else stays byte for byte."""
    path, _, query = target.partition(b"?")
    kept = [part for part in query.split(b"&") if part.partition(b"=")[0].lower() not in KEY_PARAMETERS]
    return target if len(kept) == query.count(b"&") + 1 else path + (b"?" + b"&".join(kept) if kept else b"")
