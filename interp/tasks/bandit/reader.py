"""Read recorded choices among arms from a table with one row per trial."""

from __future__ import annotations

from pathlib import Path

from interp.support.checks import checked
from interp.tasks.bandit.episodes import BanditEpisodes


@checked
def read(
    path: str | Path,
    participant: str | None = None,
    choice: str | None = None,
    reward: str | list[str] | None = None,
    session: str | list[str] | None = None,
    order: str | None = None,
    options: list[str] | None = None,
    pairs: str | None = None,
    sides: list[str] | None = None,
    forced: str | None = None,
    missed: str | int | float | list[str | int | float] | None = None,
    scale: float | None = None,
    lookalikes: str | None = None,
    most_arms: int | None = None,
    encoding: str | None = None,
    decimal: str | None = None,
) -> BanditEpisodes:
    """Read recorded choices from a table with one row per trial.

    The labels of choices become arms 0, 1, ... in sorted order. The result's field ``arms`` has the
    labels, and ``reading`` is a report on what was read. A row without a choice is a missed trial.
    A choice without a reward is scored, but algorithms do not learn from it. Columns with usual
    names, such as "choice", are found without being named.

    Args:
        path: CSV (commas, semicolons, tabs or blanks), or JSON lines; plain or compressed.
        participant: name of the column with the participant; the word none if the table has only one participant.
        choice: name of the column with the chosen arm, or with the chosen side if ``options`` name the arms on each
            side.
        reward: names of the columns with the reward; several columns are summed, and one called loss is
            subtracted if it has no negative number.
        session: names of the columns that define sessions, in each of which learning starts anew; the word none for
            one session.
        order: name of the column that orders the trials; with the word none, trials have the order of the rows.
        options: names of the columns with the arms that a trial offered, one column for each side.
        pairs: name of the column with both offered arms of a trial, such as 12 or A-B.
        sides: what the choice column calls the side of each column of ``options``, such as left and
            right, in the same order.
        forced: name of the column that marks forced trials, in which the participant could not choose; algorithms
            learn from these trials and are not scored on them.
        missed: codes of missed trials, such as -999 or timeout; the word none if there are no such codes.
        scale: number by which rewards are divided, so that inverse temperatures can be compared
            between data sets; by default, a typical size of the rewards.
        lookalikes: whether labels that differ only in spelling, such as L and l or 1 and 01, are the "same" or
            "different"; such labels are refused by default.
        most_arms: largest number of arms that the table may have; 20 by default.
        encoding: text encoding of the file, such as latin-1; detected by default.
        decimal: the decimal point of the file, "." or ","; detected by default.
    """
    from interp.tasks.bandit.recorded import read_choices
    from interp.tasks.trials import ReadingOptions

    columns = {
        "participant": participant,
        "choice": choice,
        "reward": reward,
        "session": session,
        "order": order,
        "options": options,
        "pairs": pairs,
        "forced": forced,
    }
    how = ReadingOptions(
        missed=missed,
        scale=scale,
        lookalikes=lookalikes,
        most_arms=most_arms,
        encoding=encoding,
        decimal=decimal,
    )
    return read_choices(path, columns, tuple(sides or ()), how)
