"""`poise demo`: everything at once, simulated."""

from typing import Annotated

import typer
from rich.console import Console

from poise.app.demo.demo import DemoSettings, run_demo
from poise.engine_model.profiles import find_profile
from poise.routing.registry import DEFAULT_POLICY


def demo(  # noqa: PLR0913  the signature is the list of flags
    policy: Annotated[str, typer.Option(metavar="NAME", help="Placement policy, to compare them.")] = DEFAULT_POLICY,
    replicas: Annotated[int, typer.Option(min=1, max=64, metavar="N", help="Simulated engines.")] = 4,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="What is simulated: see poise engine --help.")
    ] = "rtx-4090-llama-3.1-8b",
    speed: Annotated[float, typer.Option(min=0.01, metavar="X", help="Run the engines so many times faster.")] = 1.0,
    rate: Annotated[float, typer.Option(min=0.01, metavar="R", help="New conversations each second.")] = 4.0,
    duration: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Stop after so long. Unset: run until Ctrl-C.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Data port. Unset: 8080, or a free one if that is in use.")
    ] = None,
    admin_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Admin port. Unset: 8081, or a free one if that is in use.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same traffic.")] = 0,
) -> None:
    """Show Poise at work: simulated engines, the gateway, traffic and a live table. No GPU and no network needed.

    In a terminal the table is live; elsewhere a line is printed every few seconds.
    """
    find_profile(profile)  # the child that simulates the engines could only fail
    settings = DemoSettings(
        replicas=replicas,
        policy=policy,
        profile=profile,
        speed=speed,
        conversations_per_s=rate,
        duration_s=duration,
        port=port,
        admin_port=admin_port,
        seed=seed,
    )
    run_demo(settings, Console(soft_wrap=True))
