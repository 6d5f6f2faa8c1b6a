"""`poise top`: a gateway at work."""

import os
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console

from poise.app.top.admin_api import AdminApi
from poise.app.top.run import show_live, show_once
from poise.core.secret import secret_from

KEY_VARIABLE = "POISE_ADMIN_KEY"


def top(
    admin: Annotated[
        str, typer.Option(metavar="URL", help="Admin port of the gateway. Its key, if it has one: POISE_ADMIN_KEY.")
    ] = "http://127.0.0.1:8081",
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show what happens in one interval, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Once, as JSON, for programs.")] = False,
) -> None:
    """Show a gateway at work: its replicas, what callers wait, what goes wrong. Ctrl-C ends it."""
    key = secret_from(os.environ, KEY_VARIABLE, "the admin key") if os.environ.get(KEY_VARIABLE) else None
    api, console = AdminApi(admin, key), Console()
    if once or as_json:
        show_once(api, interval, console, as_json=as_json)
        return
    with suppress(KeyboardInterrupt):
        show_live(api, interval, console)
