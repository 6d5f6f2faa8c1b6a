"""`poise check-config`: is a configuration file right, without starting anything."""

from typing import Annotated

import typer

from poise.config.load import load_config


def check_config(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Configuration file (YAML).")],
) -> None:
    """Check a configuration file: exit 0 if it is right, else say everything that is wrong and exit 2."""
    loaded = load_config(file, {})
    count = len(loaded.settings.replicas)
    typer.echo(f"{file} is right: {count} replica{'' if count == 1 else 's'}, policy {loaded.settings.policy.name}")
