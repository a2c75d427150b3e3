"""``interp llm``: let language models play expert advice, score their choices, look inside them and
report on them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import interp.tasks
from interp.cli import options
from interp.cli.command import Say, command, llm_app
from interp.llm.backend import AGENTS, PLAYERS, AgentBackend, Backend, Connection, Settings
from interp.llm.transcripts import import_rounds
from interp.support.errors import InputError, convert_errors, require, require_known
from interp.support.files import folder_to_write, write_csv
from interp.support.foreign import json_in
from interp.support.workers import display, show_spinner

if TYPE_CHECKING:
    from interp.core.machine import Machine
    from interp.llm.runner import RunSummary
    from interp.llm.runs import LLMRun

_Number = TypeVar("_Number", int, float)


def _read_sent_number(option: str, text: str, kind: type[_Number]) -> _Number | None:
    """Return the number in an option's value, to be sent with every request; None for the word
    "none", which leaves the field out of requests.

    Args:
        option: name of the option, for the error message.
        text: the value.
        kind: int or float.
    """
    with convert_errors(
        f"{option} takes a number, or none to leave it out, got {text!r}", of=ValueError
    ):
        return None if text == "none" else kind(text)


def _name_player(model: str | None, base_url: str | None, agent: str | None, backend: str) -> str:
    """Return the name of the player that the options name; refuse options that name none, or more
    than one.

    Args:
        model: MODEL, the name of a language model.
        base_url: the option ``--base-url``.
        agent: the option ``--agent``, name of a scripted agent.
        backend: the option ``--backend``, "server" or "transformers".
    """
    require_known("backend", backend, ("server", "transformers"))
    if agent is not None:
        is_alone = model is None and base_url is None and backend == "server"
        require(
            is_alone, "--agent plays without a model: leave MODEL, --base-url and --backend out"
        )
        require_known("scripted agent", agent, PLAYERS)
        return agent
    if model is None:
        raise InputError(
            f"name who plays: --agent with one of {', '.join(PLAYERS)} (needs nothing else), MODEL with --base-url, or "
            "MODEL with --backend transformers"
        )
    if backend == "server":
        require(
            base_url is not None,
            "a model on a server needs --base-url, its address, such as http://127.0.0.1:8000/v1; for a model in this "
            "process give --backend transformers",
        )
    else:
        require(
            base_url is None,
            f"--backend {backend} runs the model in this process: leave --base-url out",
        )
    return model


def _list_effective_settings(
    agent: str | None, backend: str, *, settings: Collection[str], with_budget: bool
) -> set[str]:
    """Return the names of the settings that have an effect on a run, for this kind of player.

    Args:
        agent: name of a scripted agent; None for a language model.
        backend: what answers if there is no agent: "server" or "transformers".
        settings: names of all settings.
        with_budget: whether the run has a budget.
    """
    if agent:
        # A budget bounds the cost of a call by the largest number of tokens of an answer.
        return {"model", "max_tokens"} if with_budget else {"model"}
    server_settings = {field.name for field in fields(Connection)}
    if backend == "transformers":
        # Of these, only the number of episodes that are played at once counts here, too.
        return {*settings} - server_settings | {"concurrency"}
    return {*settings} - {"device"}


def _refuse_ineffective_settings(
    player: str, settings: Mapping[str, Any], effective: Collection[str], options: Collection[str]
) -> None:
    """Refuse settings that the user changed although they have no effect.

    Args:
        player: the player's name in the error message.
        settings: all settings with their values.
        effective: names of the settings that have an effect.
        options: names of the settings whose option leaves out a leading ``max_``, such as
            ``--retries`` for ``max_retries``.
    """
    # Any model and any server: their defaults are the same.
    defaults = vars(Settings("model")) | vars(Connection("http://localhost")) | {"device": "cpu"}
    idle = []
    for name, value in settings.items():
        if name not in effective and value != defaults[name]:
            option = name.removeprefix("max_") if name in options else name
            idle.append(f"--{option.replace('_', '-')}")
    require(not idle, f"{', '.join(idle)} does nothing for {player}: leave it out")


@command(example="interp llm open PATH --episodes 32 --rounds 10 --every 3", group=llm_app)
def _open(
    say: Say,
    model: str,
    out: Path = Path("output/llm-open"),
    regime: str = "stratified",
    episodes: Annotated[
        int, options.number_option("Number of episodes that the model plays", 10)
    ] = 32,
    rounds: Annotated[int, options.number_option("Number of rounds of an episode")] = 10,
    condition: str = "online-no-note",
    every: Annotated[
        int, options.number_option("Probe the residual stream at every N-th transformer block only")
    ] = 1,
    expert: Annotated[
        int,
        options.number_option(
            "Number of the expert, counted from 0, whose vote and count are patched in the last round",
            0,
        ),
    ] = 2,
    device: str = "cpu",
    batch: Annotated[int, options.number_option("Number of episodes in one batch")] = 8,
    seed: int = 0,
) -> None:
    """Look inside a chat model while it plays expert advice.

    Probes decode how often each expert was right. Patching changes one vote and, with notes, one count.

    Args:
        model: Chat model: a folder, a .gguf file, or the name of a cached model.
        regime: Name of the regime from which episodes are drawn, such as stratified.
        condition: Combination of framing and use of notes, such as online-note-only; notes contain the correct counts.
    """
    import pandas as pd

    import probes
    from interp.llm.opened import ANSWER, Opened

    played = interp.tasks.experts.sample(episodes, rounds, n_experts=4, regime=regime, seed=seed)
    folder_to_write(out)
    with show_spinner(f"opening {model}"):
        opened = Opened.load(model, device, condition=condition)
        names = opened.residuals(every)
        patched = []
        for kind in ("vote", "count") if opened.condition.has_note else ("vote",):
            patch = opened.patch(kind, played, expert, rounds - 1, names=names, batch=batch)
            patched.append(patch.to_frame().assign(of=kind))
        run = opened.play(played, names, batch)
        untrained = Opened.load(model, device, untrained=seed, condition=condition)
        untrained_run = untrained.play(played, names, batch)
        record = probes.targets.get("counts")(played, "before")
        count_positions = run.positions[1 + played.n_experts :]
        fitted = []
        for name, position in product(names, (ANSWER, *count_positions)):
            first = 0 if position == ANSWER else 1  # the first round has no note
            result = probes.fit(
                run.at(name, position)[:, first:],
                record.rounds(first, rounds),
                untrained=untrained_run.at(name, position)[:, first:],
                seed=seed,
            )
            columns = {"site": name, "position": position, "verdict": result.verdict}
            fitted.append(result.scores().assign(**columns))
    tables = {"probe": pd.concat(fitted), "patch": pd.concat(patched)}
    for name, table in tables.items():
        say.table(table, name, name)
    say.tables(out, tables)


@command(
    example="interp llm run --agent counter --episodes 2 --rounds 10 --regime flat --out output/llm",
    group=llm_app,
    # The parameters of both become options; the mappings `settings` and `connection` get their values.
    of={"settings": Settings, "connection": Connection},
)
def _run(
    say: Say,
    settings: Mapping[str, Any],
    connection: Mapping[str, Any],
    model: Annotated[
        str | None,
        typer.Argument(help="Name of the language model on the server, or folder of the model."),
    ] = None,
    base_url: str | None = None,
    agent: str | None = None,
    backend: str = "server",
    out: Path = Path("output/llm"),
    conditions: list[str] | None = None,
    regime: list[str] | None = None,
    episodes: Annotated[
        int,
        options.number_option(
            "Number of episodes (instances) of each regime; a larger number than before extends a run"
        ),
    ] = 30,
    rounds: Annotated[int, options.number_option("Number of rounds of an episode")] = 100,
    experts: Annotated[int, options.number_option("Number of experts that advise")] = 4,
    seed: int = 0,
    prompts: Path | None = None,
    temperature: str = "0",
    max_tokens: Annotated[
        str,
        typer.Option(
            help="Largest number of tokens of an answer; the word none leaves the limit to the server."
        ),
    ] = "2048",
    extra_body: str = "{}",
    malformed_limit: Annotated[
        int,
        options.number_option(
            "Stop the run if its first N answers are all malformed; 0 never stops it", 0
        ),
    ] = 20,
    device: str = "cpu",
    prices: list[float] | None = None,
    budget: float | None = None,
    dry_run: bool = False,
) -> None:
    """Let a language model or a scripted agent play expert advice.

    After an interruption, the same command continues the run in OUT.

    API keys are read only from environment variables, and sent only to the server that they belong to.

    Args:
        base_url: Address of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1.
        agent: Scripted agent that plays instead of a model: counter, last-step, full-history or random.
        backend: Source of the answers: server, or transformers for a model that runs on this computer.
        conditions: Combinations of framing and use of notes, such as weather-note-only; all six by default.
        regime: Names of the regimes from which episodes are drawn; by default the three regimes of the paper.
        prompts: Folder with prompts of your own, which are used without changes.
        temperature: Sampling temperature; the word none leaves the temperature to the server.
        extra_body: Additional fields of each request as JSON, such as {"top_k": 20}.
        device: Device of a model that runs in this process: cpu, cuda, ...
        prices: Three prices of a million tokens: of prompt tokens, of cached tokens and of answer tokens.
        budget: Stop before the cost exceeds this amount, in the currency of --prices, or in tokens without --prices.
        dry_run: Print the expected number of calls and tokens and the cost, and send no request.
    """
    from interp.llm import plan, runner, schemes

    extra = json_in(extra_body)
    require(isinstance(extra, dict), f"--extra-body must be a JSON object, got {extra_body!r}")
    chosen = Settings(
        _name_player(model, base_url, agent, backend),
        temperature=_read_sent_number("--temperature", temperature, float),
        max_tokens=_read_sent_number("--max-tokens", max_tokens, int),
        extra_body=extra,
        **settings,
    )
    player = agent or f"--backend {backend}"
    all_settings = {"device": device, **connection, **vars(chosen)}
    effective = _list_effective_settings(
        agent, backend, settings=all_settings, with_budget=budget is not None
    )
    _refuse_ineffective_settings(player, all_settings, effective, options={*settings, *connection})
    require(budget is None or budget > 0, f"a budget must be above 0, got {budget}")
    server = Connection(base_url, **connection) if base_url else None
    price = plan.Prices()
    if prices:
        require(
            len(prices) == 3,
            f"--prices takes three numbers (prompt, cached, answer), got {len(prices)}",
        )
        price = plan.Prices(*prices)
    texts = schemes.load_prompts(prompts) if prompts else schemes.built_in_prompts(experts)
    parsed = [schemes.Condition.parse(name) for name in conditions or ()]
    instances = plan.instances(
        regime or plan.PAPER_REGIMES, episodes, rounds, n_experts=experts, seed=seed
    )
    jobs = plan.plan(chosen, texts, instances, parsed or schemes.CONDITIONS)
    expected = plan.estimate(jobs, price)
    say.line(expected.sentence)
    if dry_run:
        title = "Expected calls, tokens and cost; nothing was asked"
        say.table(expected.frame, title, "expected")
        return
    where = server or _make_local_player(chosen, agent, connection["concurrency"], device)
    try:
        with display("calls", int(expected.frame["calls"].sum())) as update:

            def show(summary: RunSummary) -> None:
                text = (
                    f"{summary.finished}/{summary.episodes} episodes, {summary.malformed} malformed"
                )
                update(completed=summary.calls + summary.resumed_calls, text=text)

            done = runner.run(
                jobs,
                out,
                where,
                prices=price,
                progress=show,
                malformed_limit=malformed_limit,
                budget=budget,
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "interrupted; every answer is on disk: run the same command again to resume"
        ) from None
    say.line(done.sentence)
    say.facts(done={**vars(done), "complete": done.complete})
    for place, why in done.unfinished:
        say.warning(f"unfinished: {place}: {why}")
    raise typer.Exit(0 if done.complete else 1)


def _make_local_player(
    settings: Settings, agent: str | None, concurrency: int, device: str
) -> Backend:
    """Return a backend in this process: a scripted agent, or a model.

    Args:
        settings: settings of the player.
        agent: name of the scripted agent; None for a model.
        concurrency: number of episodes that a model plays at the same time.
        device: device on which a model runs.
    """
    if agent:
        return AgentBackend(agent, AGENTS[agent])
    from interp.llm.local import LocalBackend

    return LocalBackend(settings, concurrency, device)


@command(example="interp llm demo --out output/llm-demo", group=llm_app, needs_torch=True)
def _demo(say: Say, out: Path = Path("output/llm-demo"), seed: int = 0) -> None:
    """Run a small experiment offline: let scripted agents play expert advice, score them and write the report."""
    from interp.choices.behaviour import behaviour, behaviour_tables
    from interp.llm.loading import load
    from interp.llm.runner import play_demo
    from interp.llm.scores import readable, write_tables
    from reports.llm import write

    folder_to_write(out)
    for name, description in PLAYERS.items():
        say.line(f"{name}: {description}")
    traces = out / "traces"
    with show_spinner("playing the scripted agents"):
        played = play_demo(traces, seed)
    for name, done in played.items():
        say.line(f"{name}: {done.sentence}")
    with show_spinner("scoring and drawing"):
        runs = load(traces)
        acts = behaviour(runs, seed)
        scores, written = write_tables(runs, out / "scores", seed=seed, more=behaviour_tables(acts))
        page = write(traces, models=(), out=out, seed=seed, acts=acts)
    say.table(
        readable(scores.final), "Regret after the last round, mean ± std over instances", "regret"
    )
    say.files([*written, page])


@command(
    example="interp llm import chats.jsonl --advice A B --outcome truth --choice answer",
    group=llm_app,
    of={"columns": import_rounds},  # its parameters are options, whose values `columns` gets
    more="For chats, give the names of keys of the JSON objects in the messages instead of names of columns.",
)
def _import(
    say: Say,
    columns: Mapping[str, Any],
    file: Annotated[
        Path,
        typer.Argument(
            help="File of recorded rounds: a table with a header and one row for each round, chats as JSON lines, or "
            "a log of Inspect."
        ),
    ],
    out: Path = Path("output/llm-imported"),
) -> None:
    """Convert rounds that were recorded elsewhere to the files that `interp llm score` and `interp
    llm report` read.

    Args:
        columns: Values of the options that are passed to import_rounds, by name, such as "advice".
    """
    imported = import_rounds(file, folder_to_write(out), **columns)
    options.say_what_was_read(say, imported)
    say.line(imported.sentence)
    say.facts(missing=imported.missing)
    say.files(imported.files)


@command(example="interp llm score output/llm", group=llm_app, needs_torch=True)
def _score(
    say: Say,
    path: Path,
    models: list[str] | None = None,
    out: Path = Path("output/llm-scores"),
    regime: str | None = None,
    duplicates: str = "refuse",
    seed: int = 0,
    shard: options.Shard = "",
) -> None:
    """Score recorded games (traces) of language models, and compare the scores with baselines.

    The command writes regret, behaviour and notes as CSV tables. With --shard, each combination of model, condition
    and regime is one part of the work.

    Args:
        models: Names of the transformers with which the choices of each player are compared.
        regime: Regime of those result.json files that do not name their regime.
    """
    import joblib

    from interp.llm.loading import read
    from interp.llm.runs import group_runs
    from interp.llm.scores import readable, write_tables

    reading = read(path, regime, duplicates)
    if len(reading.sentences) > 1:  # not all files are used
        say.warning("\n".join(reading.sentences))
    machines = [options.load(name, {}).model for name in models or ()]
    makers = {
        ", ".join(group): partial(_explain_group, runs, seed, machines)
        for group, runs in group_runs(reading.runs).items()
    }
    settings = {"seed": seed, "models": models, "runs": joblib.hash(reading.runs)}
    # With digests of checkpoints, parts are computed again if a checkpoint was changed.
    settings |= options.digest_files(models or [])
    with options.compute_in_shares(say, out, makers, settings, shard) as explained:
        if shard:
            return
        explained_tables = options.join_tables(group["tables"] for group in explained.values())
        scores, written = write_tables(reading.runs, out, seed=seed, more=explained_tables)
    written.append(write_csv(out / "read.csv", reading.table))
    for group in explained.values():
        if group["sentence"]:
            say.line(group["sentence"])
    say.table(
        readable(scores.final), "Regret after the last round, mean ± std over instances", "regret"
    )
    say.files(written)


def _explain_group(
    runs: Sequence[LLMRun], seed: int, machines: Sequence[Machine]
) -> dict[str, Any]:
    """Find the algorithms that explain the choices of one group of runs.

    Args:
        runs: the runs of one model, condition and regime.
        seed: seed of the bootstraps.
        machines: models that the choices are also compared with.

    Returns:
        "sentence": the result in words; "tables": name -> data frame.
    """
    from interp.choices.behaviour import behaviour, behaviour_tables

    players = behaviour(runs, seed, machines)
    lines = []
    for player in players:
        lines.append(str(player))
        if player.found:
            compared = player.found.beside.items()
            lines += [f"beside {name}: {beside.measure}" for name, beside in compared]
    return {"sentence": "\n".join(lines), "tables": behaviour_tables(players)}


@command(
    example="interp llm report output/llm --models wma-handwired wma-learned",
    group=llm_app,
    needs_torch=True,
)
def _report(
    say: Say,
    path: Path,
    models: list[str] | None = None,
    out: Path = Path("output"),
    regime: str | None = None,
    duplicates: str = "refuse",
    seed: int = 0,
) -> None:
    """Write a report on recorded games (traces) of language models, with other models on the same instances.

    Args:
        regime: Regime of those result.json files that do not name their regime.
        models: Names of the handwired and learned models that run on the same instances as the language models.
    """
    from reports.llm import write

    folder_to_write(out)
    with show_spinner("scoring and drawing"):
        page = write(path, models or [], out=out, regime=regime, duplicates=duplicates, seed=seed)
    say.files([page])
