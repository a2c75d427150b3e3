"""``interp llm run`` and ``interp llm demo``: language models and scripted agents play expert advice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interp.cli import options
from interp.cli.command import Say, command, llm_app
from interp.errors import InputError

if TYPE_CHECKING:
    from interp.llm.backend import Backend, Connection, Settings
    from interp.llm.runner import RunSummary

_Player = Annotated[str | None, typer.Argument(help="The model: its name on the server, or its folder.")]
_Address = Annotated[str | None, typer.Option(help="OpenAI-compatible, such as http://127.0.0.1:8000/v1.")]
_Thinking = Annotated[str, typer.Option(help="How this server turns thinking off: deepseek, chat-template.")]
_Key = Annotated[str | None, typer.Option(help="Environment variable with the key for --base-url.")]


@command(
    "run",
    example="interp llm run --agent counter --episodes 2 --rounds 10 --regime flat --out output/llm",
    group=llm_app,
)
def run(
    say: Say,
    model: _Player = None,
    base_url: _Address = None,
    agent: Annotated[str | None, typer.Option(help="Instead: counter, last-step, full-history or random.")] = None,
    backend: Annotated[str, typer.Option(help="server, or transformers: the model runs here.")] = "server",
    out: options.Out = Path("output/llm"),
    conditions: Annotated[list[str] | None, typer.Option(help="Such as weather-note-only; all six by default.")] = None,
    regime: Annotated[list[str] | None, typer.Option(help="Expert regimes; the paper's three by default.")] = None,
    episodes: Annotated[int, options.number("Episodes (instances) of each regime; more add to a run")] = 30,
    rounds: Annotated[int, options.number("Rounds per episode; more extend a run")] = 100,
    experts: Annotated[int, options.number("Number of experts")] = 4,
    seed: options.Seed = 0,
    prompts: Annotated[Path | None, typer.Option(help="Folder of your own prompts, used verbatim.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = 0.0,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling; not sent by default.")] = None,
    max_tokens: Annotated[int, options.number("Longest answer, in tokens")] = 2048,
    response_format: Annotated[str, typer.Option(help="none, json_object, json_schema or grammar.")] = "none",
    thinking_off: _Thinking = "",
    extra_body: Annotated[str, typer.Option(help='More request fields as JSON, such as {"top_k": 20}.')] = "{}",
    send_seed: Annotated[bool, typer.Option(help="Send a seed with each request.")] = True,
    reasks: Annotated[int, options.number("How often a malformed answer is asked again", 0)] = 2,
    key_env: _Key = None,
    concurrency: Annotated[int, options.number("Episodes at a time")] = 4,
    requests_per_minute: Annotated[float | None, typer.Option(help="No more requests than this.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one attempt.")] = 120.0,
    retries: Annotated[int, options.number("Attempts after the first, for transient errors", 0)] = 8,
    malformed_limit: Annotated[int, options.number("Stop if the first N are all malformed, 0 for never", 0)] = 20,
    device: Annotated[str, typer.Option(help="With --backend transformers: cpu, cuda, ...")] = "cpu",
    prices: Annotated[list[float] | None, typer.Option(help="Of 1e6 prompt, cached and answer tokens.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print calls, tokens and cost, and stop.")] = False,
) -> None:
    """Play a language model or a scripted agent on expert advice; resumes what is in OUT.

    Keys come from the environment only, and go to the address they were given for only.
    """
    from interp.llm import plan, schemes
    from interp.llm.backend import Connection, Settings, extra_fields, who_plays

    name, extra = who_plays(model, base_url, agent, backend), extra_fields(extra_body)
    settings = Settings(
        name, temperature, top_p, max_tokens, response_format, thinking_off, extra, send_seed, max_reasks=reasks
    )
    connection = Connection(base_url, key_env, concurrency, requests_per_minute, timeout, retries) if base_url else None
    if prices is not None and len(prices) != 3:
        raise InputError(f"--prices takes three numbers (prompt, cached, answer), got {len(prices)}")
    price = plan.Prices(*(prices or ()))
    texts = schemes.load_prompts(prompts) if prompts else schemes.built_in_prompts(experts)
    chosen = [schemes.Condition.parse(name) for name in conditions] if conditions else schemes.CONDITIONS
    drawn = plan.instances(regime or plan.PAPER_REGIMES, episodes, rounds, experts, seed)
    jobs = plan.plan(settings, texts, drawn, chosen)
    expected = plan.estimate(jobs, price)
    say.line(expected.sentence)
    if dry_run:
        say.table(expected.readable(), "Expected calls, tokens and cost; nothing was asked", "expected")
        return
    where = _place(settings, agent, backend, connection, concurrency, device)
    done = _played(say, jobs, out, where, price, malformed_limit, expected.calls)
    say.line(done.sentence)
    say.facts(done={**vars(done), "complete": done.complete})
    for place, why in done.unfinished:
        say.aside(f"unfinished: {place}: {why}")
    raise typer.Exit(0 if done.complete else 1)


def _played(say: Say, jobs: Any, out: Path, where: Any, price: Any, malformed_limit: int, calls: int) -> RunSummary:
    """Play every job; an interruption leaves with exit code 130, and nothing is lost."""
    from interp.llm import runner

    try:
        with runner.showing(calls) as progress:
            return runner.run(jobs, out, where, price, progress, malformed_limit)
    except KeyboardInterrupt:
        say.aside("interrupted; every answer is on disk: run the same command again to resume")
        raise typer.Exit(130) from None


@command("demo", example="interp llm demo --out output/llm-demo", group=llm_app, torch=True)
def demo(say: Say, out: options.Out = Path("output/llm-demo"), seed: options.Seed = 0) -> None:
    """Play the scripted agents, score them and write the report: the whole experiment in small, offline."""
    from interp.llm.agents import PLAYERS
    from interp.llm.demo import play_demo
    from interp.llm.loading import load
    from interp.llm.tables import readable, write_tables
    from interp.progress import working
    from reports.llm import build

    options.to_be_written(out)
    for name, about in PLAYERS.items():
        say.line(f"{name}: {about}")
    traces = out / "traces"
    with working("playing the scripted agents"):
        played = play_demo(traces, seed)
    for name, done in played.items():
        say.line(f"{name}: {done.sentence}")
    with working("scoring and drawing"):
        scores, written = write_tables(load(traces), out / "scores", seed=seed)
        page = build(traces, (), out=out, seed=seed)
    say.table(readable(scores.final), "Regret after the last round, mean ± std over instances", "regret")
    say.wrote([*written, page])


def _place(
    settings: Settings, agent: str | None, backend: str, connection: Connection | None, concurrency: int, device: str
) -> Connection | Backend:
    """What :func:`interp.llm.runner.run` asks."""
    from interp.llm.agents import scripted
    from interp.llm.backend import AgentBackend
    from interp.llm.local import LocalBackend

    if agent is not None:
        return AgentBackend(agent, scripted(agent))
    if backend == "transformers":
        return LocalBackend(settings, concurrency, device)
    assert connection is not None, "a server has a connection"
    return connection
