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
        participant: column of the participants; none if the table has only one.
        choice: column of the choice: an arm, or a side where ``options`` say what was shown there.
        reward: column of the reward; several columns are summed.
        session: columns of sessions, in each of which learning begins anew; none for one session.
        order: column by which trials are ordered; none for the order of the rows.
        options: columns of what was on offer in each trial, in the order in which it was shown.
        pairs: column that says which arms were on offer, such as 12 or A-B.
        sides: the name of the choice of each option, in their order.
        forced: column of the trials in which the participant could not choose; they are learned from and not scored.
        missed: codes of missed trials, such as -999 or timeout; none if no label is such a code.
        scale: divisor of rewards, so that inverse temperatures can be compared; a usual size when None.
        lookalikes: whether labels such as L and l, or 1 and 01, are the "same" or "different".
        most_arms: largest number of arms; 20 when None.
        encoding: text encoding of the file, such as latin-1; detected when None.
        decimal: the decimal point of the file, "." or ","; detected when None.
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
