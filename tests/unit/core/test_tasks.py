"""Tasks have a name and an owner, end with it, and fail aloud."""

import asyncio
from typing import Any

import pytest

from poise.core.tasks import TaskGroupOwner


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def answer() -> int:
    return 42


async def fail() -> None:
    raise RuntimeError("broken")


async def fail_when_cancelled() -> None:
    try:
        await forever()
    except asyncio.CancelledError:
        raise RuntimeError("broken while being cancelled") from None


def heard() -> list[dict[str, Any]]:
    """What the loop's exception handler is told from now on."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    return told


async def test_a_task_is_kept_until_it_ends_and_gives_its_result() -> None:
    owner = TaskGroupOwner()
    task = owner.spawn(answer(), name="answer")
    assert (task.get_name(), owner.running) == ("answer", 1)
    assert await task == 42
    assert owner.running == 0


@pytest.mark.parametrize("count", [0, 1, 20])
async def test_close_ends_what_still_runs(count: int) -> None:
    owner = TaskGroupOwner()
    tasks = [owner.spawn(forever() if index % 2 else answer(), name=str(index)) for index in range(count)]
    started = [owner.spawn(forever(), name="started")]
    await asyncio.sleep(0)
    tasks.append(owner.spawn(forever(), name="not started"))
    await owner.close()
    assert owner.running == 0
    assert all(task.done() for task in tasks + started)
    await owner.close()


async def test_a_failure_is_told_once_with_the_tasks_name() -> None:
    told, owner = heard(), TaskGroupOwner()
    failing = owner.spawn(fail(), name="poll r1")
    other = owner.spawn(forever(), name="other")
    await asyncio.wait([failing])
    await asyncio.sleep(0)
    assert [(context["message"], str(context["exception"])) for context in told] == [("task poll r1 failed", "broken")]
    assert not other.done(), "one failure ends no other task"
    await owner.close()
    assert len(told) == 1, "cancelling is no failure"


async def test_a_failure_while_closing_is_told_too() -> None:
    told, owner = heard(), TaskGroupOwner()
    owner.spawn(fail_when_cancelled(), name="stubborn")
    await asyncio.sleep(0)
    await owner.close()
    assert [context["message"] for context in told] == ["task stubborn failed"]
    assert owner.running == 0
