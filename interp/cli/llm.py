"""``interp llm``: language models as online learners are opened, played, and what they said is scored and reported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from interp.cli import options
from interp.cli.command import Say, command, llm_app
from interp.llm.backend import AGENTS, PLAYERS, AgentBackend, Backend, Connection, Settings
from interp.support.errors import InputError, require, require_known, theirs
from interp.support.files import folder_to_write, write_csv
from interp.support.workers import display, working

if TYPE_CHECKING:
    from interp.llm.loading import Reading

_Number = TypeVar("_Number", int, float)


def _sent(option: str, text: str, kind: type[_Number]) -> _Number | None:
    """An option whose field can be left out of requests, by the word none."""
    with theirs(f"{option} takes a number, or none to leave it out, got {text!r}", of=ValueError):
        return None if text == "none" else kind(text)


def _who_plays(model: str | None, base_url: str | None, agent: str | None, backend: str) -> str:
    """The name that goes into the settings, after a check that exactly one player was named."""
    require_known("backend", backend, ("server", "transformers"))
    if agent is not None:
        require(
            model is None and base_url is None and backend == "server",
            "--agent plays without a model: leave MODEL, --base-url and --backend out",
        )
        require_known("scripted agent", agent, PLAYERS)
        return agent
    if model is None:
        raise InputError(
            f"name who plays: --agent with one of {', '.join(PLAYERS)} (needs nothing else), MODEL with --base-url, or "
            "MODEL with --backend transformers"
        )
    needs = "a model on a server needs --base-url, its address, such as http://127.0.0.1:8000/v1"
    if backend == "server":
        require(
            base_url is not None,
            f"{needs}; for a model in this process give --backend transformers",
        )
    else:
        require(
            base_url is None,
            f"--backend {backend} runs the model in this process: leave --base-url out",
        )
    return model


@command(example="interp llm open PATH --episodes 32 --rounds 10 --every 3", group=llm_app)
def _open(
    say: Say,
    model: str,
    out: Path = Path("output/llm-open"),
    regime: str = "stratified",
    episodes: Annotated[int, options.number("Number of episodes", 10)] = 32,
    rounds: Annotated[int, options.number("Rounds per episode")] = 10,
    condition: str = "online-no-note",
    every: Annotated[int, options.number("Look after every so many blocks")] = 1,
    expert: Annotated[
        int, options.number("Whose vote, and count, is patched in the last round, from 0", 0)
    ] = 2,
    device: str = "cpu",
    batch: Annotated[int, options.number("Episodes at a time")] = 8,
    seed: int = 0,
) -> None:
    """Open a chat model while it learns: probe each expert's record, patch one vote, and in notes the counts.

    Args:
        model: Folder, .gguf file or cached name of a chat model.
        regime: Expert regime.
        condition: Notes, where it has them, are right counts.
    """
    import pandas as pd

    import probes
    from interp.llm.opened import ANSWER, Opened

    played = Opened.sample(episodes, rounds, regime=regime, seed=seed)
    folder_to_write(out)
    with working(f"opening {model}"):
        opened = Opened.load(model, device, condition=condition)
        names = opened.residuals(every)
        patches = [opened.patch("vote", played, expert, rounds - 1, names, batch)]
        if opened.condition.has_note:
            patches.append(opened.patch("count", played, expert, rounds - 1, names, batch))
        run = opened.play(played, names, batch)
        blank = Opened.load(model, device, untrained=seed, condition=condition).play(
            played, names, batch
        )
        fitted, record = [], probes.targets.get("counts")(played, "before")
        for name in names:
            for at in (ANSWER, *run.positions[1 + played.n_experts :]):
                first = int(at != ANSWER)  # the first round has no note
                own, drawn = (one.at(name, at)[:, first:] for one in (run, blank))
                found = probes.fit(own, record.rounds(first, rounds), untrained=drawn, seed=seed)
                fitted.append(found.scores().assign(site=name, position=at, verdict=found.verdict))
    patched = pd.concat([one.to_frame().assign(of=one.settings["of"]) for one in patches])
    for name, table in {"probe": pd.concat(fitted), "patch": patched}.items():
        say.table(table, name, name)
        say.wrote([write_csv(out / f"{name}.csv", table)])


@command(
    example="interp llm run --agent counter --episodes 2 --rounds 10 --regime flat --out output/llm",
    group=llm_app,
    of={"settings": Settings, "connection": Connection},
)
def _run(
    say: Say,
    settings: Mapping[str, Any],
    connection: Mapping[str, Any],
    model: Annotated[
        str | None, typer.Argument(help="The model: its name on the server, or its folder.")
    ] = None,
    base_url: str | None = None,
    agent: str | None = None,
    backend: str = "server",
    out: Path = Path("output/llm"),
    conditions: list[str] | None = None,
    regime: list[str] | None = None,
    episodes: Annotated[
        int, options.number("Episodes (instances) of each regime; more add to a run")
    ] = 30,
    rounds: Annotated[int, options.number("Rounds per episode; more extend a run")] = 100,
    experts: Annotated[int, options.number("Number of experts")] = 4,
    seed: int = 0,
    prompts: Path | None = None,
    temperature: str = "0",
    max_tokens: Annotated[
        str, typer.Option(help="Longest answer, in tokens; none sends none.")
    ] = "2048",
    extra_body: str = "{}",
    malformed_limit: Annotated[
        int, options.number("Stop if the first N are all malformed, 0 for never", 0)
    ] = 20,
    device: str = "cpu",
    prices: list[float] | None = None,
    budget: float | None = None,
    dry_run: bool = False,
) -> None:
    """Play a language model or a scripted agent on expert advice; resumes what is in OUT.

    Keys come from the environment only, and go to the address they were given for only.

    Args:
        base_url: OpenAI-compatible, such as http://127.0.0.1:8000/v1.
        agent: Instead of a model: counter, last-step, full-history or random.
        backend: What answers: server, or transformers for a model that runs here.
        conditions: Such as weather-note-only; all six by default.
        regime: Expert regimes; the paper's three by default.
        prompts: Folder of your own prompts, used verbatim.
        temperature: Sampling temperature; none sends none.
        extra_body: More request fields as JSON, such as {"top_k": 20}.
        device: Where a model in this process runs: cpu, cuda, ...
        prices: Of 1e6 prompt, cached and answer tokens.
        budget: Stop before more is spent: by --prices, else tokens.
        dry_run: Print calls, tokens and cost, and stop.
    """
    from interp.llm import plan, runner, schemes

    extra = schemes.json_in(extra_body)
    require(isinstance(extra, dict), f"--extra-body must be a JSON object, got {extra_body!r}")
    chosen = Settings(
        _who_plays(model, base_url, agent, backend),
        temperature=_sent("--temperature", temperature, float),
        max_tokens=_sent("--max-tokens", max_tokens, int),
        extra_body=extra,
        **settings,
    )
    used: set[str] = {"device", "concurrency"} if backend == "transformers" else {*connection}
    used = {"model", "max_tokens" if budget else ""} if agent else used | {*vars(chosen)}
    usual = {"device": "cpu"} | vars(Settings(chosen.model)) | vars(Connection("http://localhost"))
    given = {"device": device, **connection, **vars(chosen)}.items()
    idle = [name for name, value in given if name not in used and value != usual[name]]
    called = [
        name.removeprefix("max_") if name in {**settings, **connection} else name for name in idle
    ]
    unused = ", ".join(f"--{name.replace('_', '-')}" for name in called)
    require(not idle, f"{unused} does nothing for {agent or f'--backend {backend}'}: leave it out")
    require(budget is None or budget > 0, f"a budget must be above 0, got {budget}")
    server = Connection(base_url, **connection) if base_url else None
    n_prices = len(prices or (0, 0, 0))
    require(n_prices == 3, f"--prices takes three numbers (prompt, cached, answer), got {n_prices}")
    price = plan.Prices(*(prices or ()))
    texts = schemes.load_prompts(prompts) if prompts else schemes.built_in_prompts(experts)
    parsed = (
        [schemes.Condition.parse(name) for name in conditions] if conditions else schemes.CONDITIONS
    )
    drawn = plan.instances(regime or plan.PAPER_REGIMES, episodes, rounds, experts, seed)
    jobs = plan.plan(chosen, texts, drawn, parsed)
    expected = plan.estimate(jobs, price)
    say.line(expected.sentence)
    if dry_run:
        say.table(
            expected.readable(), "Expected calls, tokens and cost; nothing was asked", "expected"
        )
        return
    where: Connection | Backend | None = server
    if agent is not None:
        where = AgentBackend(agent, AGENTS[agent])
    elif backend == "transformers":
        from interp.llm.local import LocalBackend

        where = LocalBackend(chosen, connection["concurrency"], device)
    assert where is not None, "a server has an address"
    try:
        with display("calls", int(expected.frame["calls"].sum())) as update:

            def show(now: runner.RunSummary) -> None:
                text = f"{now.finished}/{now.episodes} episodes, {now.malformed} malformed"
                update(completed=now.calls + now.resumed_calls, text=text)

            done = runner.run(jobs, out, where, price, show, malformed_limit, budget)
    except KeyboardInterrupt:
        say.aside("interrupted; every answer is on disk: run the same command again to resume")
        raise typer.Exit(130) from None
    say.line(done.sentence)
    say.facts(done={**vars(done), "complete": done.complete})
    for place, why in done.unfinished:
        say.aside(f"unfinished: {place}: {why}")
    raise typer.Exit(0 if done.complete else 1)


@command(example="interp llm demo --out output/llm-demo", group=llm_app, torch=True)
def _demo(say: Say, out: Path = Path("output/llm-demo"), seed: int = 0) -> None:
    """Play the scripted agents, score them and write the report: the whole experiment in small, offline."""
    from interp.choices.behaviour import behaviour, behaviour_tables
    from interp.llm.loading import load
    from interp.llm.runner import play_demo
    from interp.llm.scores import readable, write_tables
    from reports.llm import write

    folder_to_write(out)
    for name, about in PLAYERS.items():
        say.line(f"{name}: {about}")
    traces = out / "traces"
    with working("playing the scripted agents"):
        played = play_demo(traces, seed)
    for name, done in played.items():
        say.line(f"{name}: {done.sentence}")
    with working("scoring and drawing"):
        runs = load(traces)
        acts = behaviour(runs, seed)
        scores, written = write_tables(runs, out / "scores", seed=seed, more=behaviour_tables(acts))
        page = write(traces, (), out=out, seed=seed, acts=acts)
    say.table(
        readable(scores.final), "Regret after the last round, mean ± std over instances", "regret"
    )
    say.wrote([*written, page])


def _read_traces(say: Say, path: Path, regime: str | None, duplicates: str) -> Reading:
    """The runs below ``path``; what was set aside is told on standard error."""
    from interp.llm.loading import read

    reading = read(path, regime, duplicates)
    for sentence in reading.sentences if len(reading.sentences) > 1 else ():
        say.aside(sentence)
    return reading


@command(example="interp llm score output/llm", group=llm_app)
def _score(
    say: Say,
    path: Path,
    out: Path = Path("output/llm-scores"),
    regime: str | None = None,
    duplicates: str = "refuse",
    seed: int = 0,
) -> None:
    """Score traces beside the baselines: regret, behaviour, notes; tables as CSV.

    Args:
        regime: Regime of foreign results that do not name theirs.
    """
    from interp.choices.behaviour import behaviour, behaviour_tables
    from interp.llm.scores import readable, write_tables

    reading = _read_traces(say, path, regime, duplicates)
    folder_to_write(out)
    with working("scoring"):
        acts = behaviour(reading.runs, seed)
        scores, written = write_tables(reading.runs, out, seed=seed, more=behaviour_tables(acts))
    written.append(write_csv(out / "read.csv", reading.table))
    for one in acts:
        say.line(str(one))
    say.table(
        readable(scores.final), "Regret after the last round, mean ± std over instances", "regret"
    )
    say.wrote(written)


@command(example="interp llm notes output/llm", group=llm_app)
def _notes(
    say: Say,
    path: Path,
    out: Path = Path("output/llm-notes"),
    regime: str | None = None,
    duplicates: str = "refuse",
    test: bool = False,
    rounds: Annotated[
        int | None, options.number("With --test: rounds played after an edit, 2 by default")
    ] = None,
    against: list[str] | None = None,
    base_url: str | None = None,
    key_env: str | None = None,
    concurrency: Annotated[int, options.number("Episodes at a time")] = 4,
    device: str = "cpu",
    seed: int = 0,
) -> None:
    """What the notes in traces say: their formats over the rounds, whether they count right, and every note.

    With --test, do they carry the state? Notes are edited, and the player of the traces goes on from them.

    Args:
        regime: Regime of foreign results that do not name theirs.
        test: Edit notes, let the player go on, compare its choices.
        against: With --test: agents that say what edits should do.
        base_url: With --test: where the player is asked, if not as before.
        key_env: Environment variable with the key for the server.
        device: Where a model in this process runs: cpu, cuda, ...
    """
    from interp.llm.scores import note_table, write_notes

    asking: dict[str, Any] = {
        "--rounds": rounds,
        "--against": against,
        "--base-url": base_url,
        "--key-env": key_env,
    }
    asking |= {
        "--concurrency": concurrency - 4 or None,
        "--device": None if device == "cpu" else device,
    }
    for option, value in asking.items():
        require(
            test or value is None,
            f"{option} is of a test of notes: give --test, too, or leave it out",
        )
    if test:
        import pandas as pd

        from interp.llm import note_tests

        folder_to_write(out)
        asked = note_tests.Endpoint(base_url, key_env, concurrency, device)
        with working("asking with edited notes"):
            found = note_tests.try_edits(
                path, out / "traces", rounds or 2, against or note_tests.AGAINST, asked, seed
            )
        say.measures(*found)
        tables = {
            "note_edits": [one.table for one in found],
            "note_measures": [one.to_frame() for one in found],
        }
        whose = [{"model": one.model, "condition": one.condition} for one in found]
        for name, frames in tables.items():
            frame = pd.concat([frame.assign(**of) for frame, of in zip(frames, whose, strict=True)])
            say.wrote([write_csv(out / f"{name}.csv", frame)])
        return

    reading = _read_traces(say, path, regime, duplicates)
    folder_to_write(out)
    with working("reading notes"):
        table = note_table(reading.runs)
        written = write_notes(table, out)
    title = "Share of runs with each format after the first round, the sixth (step 5) and the last"
    say.table(table.formats_over_rounds(), title, "formats")
    say.table(table.final(), "The last note", "last_note")
    say.wrote(written)


@command(
    example="interp llm report output/llm --models wma-handwired wma-learned-additive",
    group=llm_app,
    torch=True,
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
    """Write the report on traces, with handwired and learned transformers on the same instances.

    Args:
        regime: Regime of foreign results that do not name theirs.
        models: Transformers to run on the same instances.
    """
    from reports.llm import write

    folder_to_write(out)
    with working("scoring and drawing"):
        page = write(path, models or [], out=out, regime=regime, duplicates=duplicates, seed=seed)
    say.wrote([page])
