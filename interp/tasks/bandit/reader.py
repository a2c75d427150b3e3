"""Read recorded choices from a table with a row a trial."""

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
    """Read recorded choices from a table with a row a trial.

    Labels of choices become arms 0, 1, ... in sorted order, and stand in ``arms`` of the result; what was read stands
    in its ``reading``. A row without a choice is a missed trial; a choice without a reward is kept, and nothing is
    learned from it. Usual names of columns are found by themselves.

    Args:
        path: CSV (commas, semicolons, tabs or blanks), or JSON lines; plain or compressed.
        participant: column with the participant; none if the table has only one participant.
        choice: column with the choice: an arm, or a side if ``options`` name what was shown there.
        reward: column with the reward; several columns are summed.
        session: columns that define sessions; learning starts anew in each session; none for one session.
        order: column that orders the trials; none for the order of the rows.
        options: columns with the arms that were offered in each trial, in the order of the sides.
        pairs: column with the offered arms, such as 12 or A-B.
        sides: values of the choice column for each option, in the order of the options.
        forced: column that marks forced trials, in which the participant could not choose; they are
            learned from and not scored.
        missed: codes of missed trials, such as -999 or timeout; none if there are no such codes.
        scale: number by which rewards are divided, so that inverse temperatures can be compared;
            chosen from the data by default.
        lookalikes: whether similar labels, such as L and l or 1 and 01, are the "same" or "different".
        most_arms: largest number of arms; 20 by default.
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
