"""Two real vLLM replicas on the CPU and gateways in front of them, real processes all.

Both replicas serve the same tiny random model as `tiny`. r1 takes any number of requests; r2 refuses when it has
QUEUE_LIMIT of them. Run with `make test-vllm`, which installs vLLM first.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from openai import OpenAI
from vllm_http import wait_until
from vllm_servers import INSTALLED, QUEUE_LIMIT, Gateway, OpenGateway, Replica, free_ports, running


@pytest.fixture(scope="session")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Replica, Replica]]:
    if not INSTALLED.exists():
        pytest.fail(f"vLLM is not installed in {INSTALLED}\nhint: run make test-vllm")
    logs = tmp_path_factory.mktemp("replicas")
    ports = free_ports(2)
    r1 = Replica("r1", ports[0], logs)
    r2 = Replica("r2", ports[1], logs, "--max-num-queued-reqs", str(QUEUE_LIMIT))
    with running([r1, r2], "/health", within_s=110):
        r1.stand_back()
        r2.stand_back()
        yield r1, r2


@pytest.fixture(scope="session")
def open_gateway(tmp_path_factory: pytest.TempPathFactory) -> OpenGateway:
    """`open_gateway(replica, ..., policy=NAME, settings=CONFIGURATION)`: ready, and stopped at the end of the block."""

    @contextmanager
    def open_one(
        *replicas: Replica, policy: str | None = None, settings: Mapping[str, Any] | None = None
    ) -> Iterator[Gateway]:
        gateway = Gateway(replicas, policy, settings, tmp_path_factory.mktemp("gateway"))
        with running([gateway], "/ready", within_s=20):
            wait_until(gateway.is_complete, 20, "every replica is ready")
            yield gateway

    return open_one


@pytest.fixture(scope="session")
def gateway(replicas: tuple[Replica, Replica], open_gateway: OpenGateway) -> Iterator[Gateway]:
    """The gateway as it comes, in front of both replicas."""
    with open_gateway(*replicas) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def client(gateway: Gateway) -> Iterator[OpenAI]:
    """The official client, which is not to hide a failure by a retry of its own."""
    with OpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture(autouse=True)
def idle(replicas: tuple[Replica, Replica]) -> None:
    """Begin every test with nothing left of the one before."""
    for replica in replicas:
        wait_until(replica.is_idle, 20, f"{replica.name} is idle")
