"""Commands that make pages: ``interp report`` about a model, ``interp explore`` with a live model,
``interp choices`` about recorded choices.
"""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import interp.tasks
from interp.cli import options
from interp.cli.command import Say, command
from interp.support.checks import seed_of
from interp.support.errors import require
from interp.support.files import folder_to_write


@command(
    example="interp choices people.csv --participant subjID --choice choice --reward outcome",
    of={"columns": interp.tasks.bandit.read},  # its parameters are options, for `columns`
    needs_torch=True,
)
def _choices(
    say: Say,
    columns: Mapping[str, Any],
    file: Annotated[
        Path,
        typer.Argument(
            help="File with a table of choices: a header and one row for each trial, as CSV or JSON lines; "
            "plain or compressed."
        ),
    ],
    units: Annotated[
        int,
        options.number_option(
            "Number of hidden units of the GRU that is compared with the algorithms"
        ),
    ] = 2,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Fit only all participants together, without the GRU, single participants and the recovery test.",
        ),
    ] = False,
    beside: list[str] | None = None,
    seed: int = 0,
    out: Path = Path("output/choices"),
    shard: options.Shard = "",
) -> None:
    """Find the learning algorithms that explain choices of people, animals or models, and write one page.

    Args:
        beside: Further players that the page compares with the participants, each as NAME=PLACE: a network, or a
            file of choices with names of its columns, such as choice=answer.
    """
    import joblib

    from interp.choices.players import draw_people
    from reports.choices import PEOPLE, divide_explanations, players_of, write

    require(
        not (quick and shard),
        "--quick fits all participants as one, so that nothing is left to divide; leave out --quick, or --shard",
    )
    episodes = interp.tasks.bandit.read(file, **columns)
    options.say_what_was_read(say, episodes)
    players = players_of(episodes, _read_players(say, beside or []), seed)
    makers = {} if quick else divide_explanations(players, seed)
    tables = [(player.episodes, player.choices) for player in players.values()]
    settings = {"seed": seed, "table": joblib.hash(tables)}
    with options.compute_in_shares(say, folder_to_write(out), makers, settings, shard) as explained:
        if shard:
            return
        page, results = write(
            file,
            out,
            units=units,
            quick=quick,
            seed=seed,
            players=players,
            parts=explained,
            beside=beside,
            **columns,
        )
    result = results.pop(PEOPLE)
    _, drawn = draw_people(episodes, episodes.choices, seed)
    if drawn:
        say.line(drawn)
    say.line(result.sentence)
    for name, explanation in results.items():
        say.line(f"{name}: {explanation.sentence}")
    if result.bound_sentence:
        say.line(result.bound_sentence)
    for name, machine in result.beside.items():
        say.line(f"beside {name}: {machine.measure}")
    say.table(result.to_frame(), "Families, the best first", "families")
    if result.algorithm:
        pairs = [f"{name}={value:.4g}" for name, value in result.parameters.items()]
        hypothesis = f"--hypothesis {result.closest} {' '.join(pairs)}"
        say.line(f"to use it in probe, audit, compare, patch and report: {hypothesis}")
    say.facts(
        closest=result.closest,
        set=list(result.confidence_set),
        verdict=result.verdict,
        parameters=dict(result.parameters),
        measures=[result.measure.to_dict()],
        beside={name: list(known.confidence_set) for name, known in results.items()},
    )
    say.files([page])


def _read_players(say: Say, words: Sequence[str]) -> dict[str, Any]:
    """Read the players that an option (``--beside``) names, such as networks.

    Args:
        say: prints the output of the command.
        words: NAME=PLACE for each player, where PLACE is the name or folder of a network, or a file
            of recorded choices. After a file, names of its columns may follow, such as
            choice=answer.

    Returns:
        NAME -> the network, or the recorded episodes.
    """
    roles = inspect.signature(interp.tasks.bandit.read).parameters
    recordings: dict[str, list[str]] = {}
    recording: list[str] = []
    for word in words:
        name, _, value = word.partition("=")
        # `roles` are names that columns of a file can have, such as "choice".
        if name in roles and recordings:  # a column of the file before it
            recording.append(word)
        else:
            require(name not in recordings, f"--beside names {name!r} twice; give another name")
            recording = [value or word]  # a word without "=" is name and place at once
            recordings[name] = recording
    players = {}
    for name, recording in recordings.items():
        if Path(recording[0]).is_file():
            players[name] = options.read(interp.tasks.bandit.TASK, recording)
            options.say_what_was_read(say, players[name])
        else:
            players[name] = options.load(recording[0], {}).model
    return players


@command(example="interp explore wma-learned", needs_torch=True, **options.OF_A_MACHINE)
def _explore(
    say: Say,
    sizes: Mapping[str, int],
    load_options: Mapping[str, Any],
    model: options.ModelName,
    reference: Annotated[
        str,
        typer.Option(
            help="Name or folder of another model of the same task, with which the page compares the model.",
            autocompletion=options.model_names,
        ),
    ] = "",
    view: str = "",
    port: Annotated[
        int,
        options.number_option(
            "Port on which the page is served; 0 takes any free port", 0, most=65535
        ),
    ] = 0,
    seed: int = 0,
) -> None:
    """Serve a live page about a model on this computer, and print its address. Ctrl-C ends the command.

    Args:
        view: View with which the page opens: the text after the question mark of a saved address of the page.
    """
    from reports.explore.server import Explorer, Served
    from reports.explore.view import View
    from reports.parts.overview import write_arguments, write_shell_options

    shown = View.of(view)
    shown = replace(shown, seed=seed_of(seed) or shown.seed)
    chosen = options.load_for_analysis(say, model, sizes, accepts_sizes=False, **load_options)
    reference_model = None
    if reference:
        reference_model = options.load(reference, {}, None, load_options.get("device", "cpu")).model
    # The options of a command that serves the same page; on any device.
    shell_options = {**sizes, **load_options, "reference": reference, "device": None}
    shell_options["set"] = shell_options.pop("arguments", None)
    shell = shlex.join(["interp", "explore", model, *write_shell_options(shell_options)])
    origin = f"interp.load({model!r}{write_arguments(chosen.arguments)})"
    explorer = Explorer(chosen.model, reference_model, origin, shell)
    served = Served(explorer, port, shown)
    address = served.address
    typer.echo(json.dumps({"command": "explore", "address": address}) if say.as_json else address)
    served.run()
    raise typer.Exit(0)


@command(
    example="interp report wma-handwired --experts 4", needs_torch=True, **options.OF_A_MACHINE
)
def _report(
    say: Say,
    sizes: Mapping[str, int],
    load_options: Mapping[str, Any],
    model: options.ModelName,
    quick: bool = False,
    episodes: Annotated[
        int | None,
        options.number_option(
            "Number of episodes; 64 by default, 16 with --quick, but at least one of each participant with --recorded",
            5,
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        options.number_option("Number of rounds of an episode; 100 by default, 20 with --quick", 2),
    ] = None,
    regime: options.Regime = "",
    seed: int = 0,
    out: Path = Path("output"),
) -> None:
    """Write a report on a model: one HTML page that opens offline. The command prints its path.

    The exit code is 1 if a part of the report could not be computed.

    Args:
        quick: Use fewer episodes; the report then takes 8 to 22 CPU seconds for a model of the package.
    """
    from reports.build import write

    folder_to_write(out)
    chosen = options.load_for_analysis(say, model, sizes, accepts_sizes=True, **load_options)
    n_people = interp.tasks.of(chosen.model).recorded.get("participants", 0)
    written = write(
        chosen.model,
        out,
        n_episodes=episodes or max(16 if quick else 64, n_people),
        n_rounds=rounds,
        seed=seed,
        quick=quick,
        source=model,
        regime=regime,
        sizes=chosen.sizes,
        arguments=chosen.arguments,
    )
    say.files([written.path])
    measures = [measure.to_dict() for measure in written.measures]
    say.facts(measures=measures, not_computed=dict(written.failures))
    raise typer.Exit(1 if written.failures else 0)
