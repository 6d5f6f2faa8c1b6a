"""`poise engine`: simulated vLLM engines, for trying things out without a GPU."""

from typing import Annotated

import typer

from poise.app.engines import run_engines
from poise.engine.settings import DEFAULT_MODEL, EngineSettings
from poise.engine_model.profiles import DEFAULT_PROFILE, PROFILES, find_profile

_PROFILE_HELP = "What is simulated: " + "; ".join(f"{name} ({p.description})" for name, p in PROFILES.items()) + "."


def engine(  # noqa: PLR0913  the signature is the list of flags
    port: Annotated[int, typer.Option(metavar="PORT", help="Port of the first engine; 0 takes free ones.")] = 8000,
    count: Annotated[int, typer.Option(metavar="N", help="Engines, on consecutive ports.")] = 1,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    profile: Annotated[str, typer.Option(metavar="NAME", help=_PROFILE_HELP)] = DEFAULT_PROFILE,
    speed: Annotated[float, typer.Option(metavar="X", help="So many times faster than the real hardware.")] = 1.0,
    model: Annotated[str, typer.Option(metavar="NAME", help="Name under which the model is served.")] = DEFAULT_MODEL,
    data_parallel_size: Annotated[int, typer.Option(metavar="N", help="Ranks behind each port.")] = 1,
    max_num_seqs: Annotated[int | None, typer.Option(metavar="N", help="Requests in one step.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(metavar="N", help="Tokens in one step.")] = None,
    max_num_queued_reqs: Annotated[
        int | None, typer.Option(metavar="N", help="Requests running and waiting, above which one is refused.")
    ] = None,
    max_num_queued_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Prompt tokens waiting, above which a request is refused.")
    ] = None,
    max_model_len: Annotated[int | None, typer.Option(metavar="N", help="Prompt and output tokens together.")] = None,
    num_gpu_blocks: Annotated[int | None, typer.Option(metavar="N", help="KV blocks of 16 tokens.")] = None,
    priority_scheduling: Annotated[bool, typer.Option("--priority-scheduling", help="Order by priority.")] = False,
    output_tokens_mean: Annotated[
        float, typer.Option(metavar="N", help="Mean length of answers that may end by themselves.")
    ] = 256.0,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same answers.")] = 0,
    until_stdin_closes: Annotated[
        bool, typer.Option("--until-stdin-closes", help="Stop when standard input ends: for whoever starts engines.")
    ] = False,
) -> None:
    """Run simulated vLLM engines: the OpenAI API, vLLM's metrics, and the timing of real hardware, without a GPU.

    The address of each engine is printed to standard output once it listens.
    """
    settings = EngineSettings(
        port=port,
        count=count,
        host=host,
        profile=find_profile(profile),
        speed=speed,
        model=model,
        data_parallel_size=data_parallel_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_queued_reqs=max_num_queued_reqs,
        max_num_queued_tokens=max_num_queued_tokens,
        max_model_len=max_model_len,
        num_gpu_blocks=num_gpu_blocks,
        priority_scheduling=priority_scheduling,
        output_tokens_mean=output_tokens_mean,
        seed=seed,
    )
    run_engines(settings, typer.echo, until_stdin_closes=until_stdin_closes)
