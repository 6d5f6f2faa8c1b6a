"""No spelling of a path gets round the table of routes."""

from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.proxy.routes import ROUTES, find_route

KNOWN = sorted(ROUTES)
FORBIDDEN = [
    b"/metrics", b"/sleep", b"/wake_up", b"/is_sleeping", b"/pause", b"/resume", b"/scale_elastic_ep", b"/server_info",
    b"/reset_prefix_cache", b"/reset_mm_cache", b"/collective_rpc", b"/v1/load_lora_adapter", b"/load", b"/docs",
    b"/v1/unload_lora_adapter", b"/update_weights", b"/start_profile", b"/stop_profile", b"/openapi.json",
    b"/invocations", b"/flush_cache", b"/abort_request", b"/v1/chat/completions/render", b"/ping", b"/version", b"/",
]  # fmt: skip
"""Engines' control routes, and paths that are none."""
STORED = [b"/v1/responses/resp_1", b"/v1/responses/resp_1/cancel", b"/v1/responses/resp_1/input_items"]

known = st.sampled_from(KNOWN + STORED)


@st.composite
def misspelt(draw: st.DrawFn, paths: st.SearchStrategy[bytes]) -> bytes:
    """A path that some servers or proxies would take for one of `paths`, though its bytes are others."""
    path = draw(paths)
    at = draw(st.integers(0, len(path)))
    slashes = [index for index, byte in enumerate(path) if byte == ord("/")]
    slash = draw(st.sampled_from(slashes)) if slashes else 0
    letter = path[at : at + 1]
    return draw(
        st.sampled_from(
            [
                path[:at] + b"%%%02x" % letter[0] + path[at + 1 :] if letter else path + b"%20",
                path[:slash] + b"/" + path[slash:],
                path[:slash] + b"/." + path[slash:],
                path[:slash] + b"/x/.." + path[slash:],
                path[:slash] + b"\\" + path[slash + 1 :],
                path[:slash] + b"%2F" + path[slash + 1 :],
                path[:slash] + b";a=b" + path[slash:] if slash else path + b";a=b",
                path + b"/",
                path + b"//",
                path + b"/.",
                path + b"?",
                path + b"#",
                path + b" ",
                path + b"\x00",
                path + b"\n",
                b" " + path,
                b"//host" + path,
                b"http://host" + path,
                path.swapcase(),
            ]
        )
    )


@pytest.mark.parametrize("path", KNOWN)
def test_a_known_path_is_itself(path: bytes) -> None:
    assert find_route(path) is ROUTES[path]


@given(path=misspelt(known))
def test_another_spelling_of_a_known_path_is_not_that_path(path: bytes) -> None:
    route = find_route(path)
    assert route is None or route.local or path in KNOWN + STORED


@given(path=st.sampled_from(FORBIDDEN) | misspelt(st.sampled_from(FORBIDDEN)))
def test_control_routes_are_served_in_no_spelling(path: bytes) -> None:
    assert find_route(path) is None


@given(prefix=known, path=st.sampled_from(FORBIDDEN), up=st.integers(1, 5), encoded=st.booleans())
def test_nothing_is_reached_by_climbing(prefix: bytes, path: bytes, up: int, encoded: bool) -> None:
    climbing = prefix + b"/.." * up + path
    if encoded:
        climbing = prefix + quote(climbing.removeprefix(prefix), safe="").encode()
    route = find_route(climbing)
    assert route is None or route.local or climbing == prefix


@given(path=st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_only_the_table_and_what_a_response_or_model_is_named_are_served(path: bytes) -> None:
    assert find_route(path) is None or path in ROUTES or path.startswith(b"/v1/models/")


names = st.text("abcXYZ019-_", min_size=1, max_size=128).map(str.encode)


@given(name=names)
def test_a_stored_response_has_its_own_methods(name: bytes) -> None:
    for path, methods in [
        (b"/v1/responses/%b" % name, (b"GET", b"DELETE")),
        (b"/v1/responses/%b/input_items" % name, (b"GET", b"DELETE")),
        (b"/v1/responses/%b/cancel" % name, (b"POST",)),
    ]:
        route = find_route(path)
        assert route is not None
        assert (route.name, route.methods, route.reads_json, route.generates) == ("responses", methods, False, False)


@given(name=st.binary(max_size=150), tail=st.sampled_from([b"", b"/cancel", b"/input_items", b"/other"]))
def test_a_response_id_has_no_bytes_that_could_mean_another_path(name: bytes, tail: bytes) -> None:
    path = b"/v1/responses/" + name + tail
    if find_route(path) is not None:
        assert unquote_to_bytes(path) == path
        assert not set(b"./\\%?#; \r\n\x00") & set(name.removesuffix(b"/cancel").removesuffix(b"/input_items"))


@given(name=st.binary(min_size=1, max_size=40))
def test_a_single_model_is_answered_by_the_gateway_whatever_its_name(name: bytes) -> None:
    route = find_route(b"/v1/models/" + name)
    assert route is not None
    assert route.local
    assert find_route(b"/v1/models/") is None


def test_what_generates_is_read_and_posted_and_has_an_end() -> None:
    for path, route in ROUTES.items():
        if route.generates:
            assert route.reads_json, path
            assert route.methods == (b"POST",), path
        assert not (route.local and route.reads_json), path
