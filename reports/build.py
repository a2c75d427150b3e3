"""From a model's name to a report on disk: sample episodes, run, check, probe, patch, look inside, write one page.

``build(name)`` is the whole of it; a recipe per task (``reports.recipes``) says what a report holds. A handwired model
is checked against the algorithm that it is; a learned one is measured by the same sections, without that check.
"""

from __future__ import annotations

from pathlib import Path

from interp.errors import require
from interp.files import writable
from interp.threads import one_thread
from reports.progress import steps


def build(name: str, out: str | Path = "output", *, n_episodes: int = 64, n_rounds: int = 100, seed: int = 0) -> Path:
    """Write the report of a model and return its path, ``out/<name>.html``.

    Args:
        name: what :func:`interp.load` takes: a model's name or a checkpoint folder.
        out: folder for the page.
        n_episodes, n_rounds: how much is sampled; at least 5 episodes (probes are split by episode) of 10 rounds.
        seed: of everything random.

    Raises:
        InputError: no such model, sizes too small, or a folder that cannot be written; before any work.
    """
    require(n_episodes >= 5, f"a report needs at least 5 episodes, got {n_episodes}: probes are split by episode")
    require(n_rounds >= 10, f"a report needs at least 10 rounds an episode, got {n_rounds}")
    import interp
    from reports.recipes import experts, qlearning

    model = interp.load(name)
    folder = writable(Path(out))
    recipe = {"experts": experts, "qlearning": qlearning}[model.layout.task]
    with one_thread(), steps(f"Report on {model.config.name}", recipe.N_STEPS) as step:
        report = recipe.report(model, name, n_episodes=n_episodes, n_rounds=n_rounds, seed=seed, step=step)
        step("writing the page")
        return report.write(folder / f"{Path(name).name}.html")
