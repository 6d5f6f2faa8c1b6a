"""`poise serve`: the gateway in front of the replicas that flags, environment and file name."""

import os
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer
import yaml
from typer.core import TyperCommand

from poise.app.run import run_gateway
from poise.config.keys import all_keys
from poise.config.load import ConfigInputs
from poise.config.show import show_config
from poise.core.errors import ConfigError
from poise.core.yaml_text import NOT_YAML

WORKER_URLS = "--worker-urls"


class ServeCommand(TyperCommand):
    """Accepts `--worker-urls A B C`, as other routers write it, beside `--replica A --replica B`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(expand_worker_urls(args)))


def expand_worker_urls(arguments: Iterable[str]) -> Iterator[str]:
    """Each URL after `--worker-urls`, up to the next flag, as a `--replica` of its own. Commas separate as well."""
    in_list = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name == WORKER_URLS:
            in_list = not equals
            urls = value
        elif in_list and not argument.startswith("-"):
            urls = argument
        else:
            in_list = False
            yield argument
            continue
        for url in filter(None, urls.split(",")):
            yield from ("--replica", url)


def _about(key: str) -> str:
    """The help of the flag that sets `key`: what the configuration says of it, its variable and its default."""
    found = all_keys()[key]
    default = found.field.default
    shown = "" if default in (None, ()) or default is False else f" [default: {default}]"
    text = found.field.description or ""
    return f"{text[:1].upper()}{text[1:]}. [env: {found.variable}]{shown}"


def serve(  # noqa: PLR0913  the signature is the list of flags
    replica: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="A replica, http://host:port, with @rank for one data-parallel rank; give one flag for each. "
            "--worker-urls A B C means the same. [env: POISE_REPLICAS]",
        ),
    ] = None,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help=_about("policy.name"))] = None,
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help=_about("host"))] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help=_about("port"))] = None,
    admin_host: Annotated[str | None, typer.Option(metavar="ADDRESS", help=_about("admin.host"))] = None,
    admin_port: Annotated[int | None, typer.Option(metavar="PORT", help=_about("admin.port"))] = None,
    reuse_port: Annotated[bool, typer.Option("--reuse-port", help=_about("reuse_port"))] = False,
    keys_file: Annotated[str | None, typer.Option(metavar="FILE", help=_about("keys.file"))] = None,
    log_requests: Annotated[str | None, typer.Option(metavar="FILE", help=_about("log.requests"))] = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help=_about("log.level"))] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other key of the configuration, such as timeouts.first_output_s=60; may be repeated. "
            "[env: POISE_TIMEOUTS_FIRST_OUTPUT_S and so on]",
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Configuration file (YAML). [env: POISE_CONFIG]")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every setting and where it came from, and exit.")
    ] = False,
) -> None:
    """Put Poise in front of replicas of a model.

    Flags beat environment variables, which beat the file, which beats the defaults.
    """
    flags = {
        "replicas": replica or None,
        "policy.name": policy,
        "host": host,
        "port": port,
        "admin.host": admin_host,
        "admin.port": admin_port,
        "reuse_port": reuse_port or None,
        "keys.file": keys_file,
        "log.requests": log_requests,
        "log.level": log_level,
    }
    overrides = {key: value for key, value in flags.items() if value is not None}
    overrides |= dict(map(_assignment, set_ or ()))
    inputs = ConfigInputs(config or os.environ.get("POISE_CONFIG"), os.environ, overrides)
    loaded = inputs.load()
    for warning in loaded.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if print_config:
        typer.echo(show_config(loaded), nl=False)
    else:
        run_gateway(loaded.settings, inputs, lambda line: typer.echo(line, err=True))


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text} has no value", hint="write --set key=value, as in --set retry.attempts=3")
    try:
        return key.strip(), yaml.safe_load(value)
    except NOT_YAML:
        raise ConfigError(f"--set {text} holds a value that is not YAML", hint="quote the value") from None
