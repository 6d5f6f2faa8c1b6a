"""The `poise` command: the list of its subcommands, and how an error becomes text and an exit code."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from poise import __version__
from poise.cli import check_config, demo, engine, policies, serve, top
from poise.core.errors import ConfigError, PoiseError

FAILED, WRONG_USAGE = 1, 2
UsageError: Any = typer.BadParameter.__base__
"""A flag or command that is not there, or a value that does not fit: typer keeps the class to itself."""


class ReportingGroup(TyperGroup):
    """Turns an error that the user can do something about into text on standard error: never a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PoiseError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(WRONG_USAGE if isinstance(error, ConfigError) else FAILED) from None
        except UsageError as error:
            command = error.ctx.command_path if error.ctx else "poise"
            typer.echo(f"error: {error.format_message()}\nhint: see {command} --help", err=True)
            raise typer.Exit(WRONG_USAGE) from None


app = typer.Typer(
    name="poise",
    cls=ReportingGroup,
    help="An LLM inference gateway: each request goes to the replica with real headroom.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
app.command("serve", cls=serve.ServeCommand)(serve.serve)
app.command("demo", short_help="Show Poise at work on simulated engines.")(demo.demo)
app.command("engine", short_help="Run simulated vLLM engines.")(engine.engine)
app.command("top", short_help="Show a gateway at work.")(top.top)
app.command("policies", short_help="List the placement policies.")(policies.policies)
app.command("check-config", short_help="Check a configuration file.")(check_config.check_config)


def run() -> None:
    """Entry point of the `poise` script."""
    app(prog_name="poise")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"poise {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
