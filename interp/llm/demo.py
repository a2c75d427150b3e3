"""The experiment in small, without a model, a server or an account: scripted agents played, scored and reported."""

from __future__ import annotations

from pathlib import Path

from interp.checks import checked
from interp.llm.agents import PLAYERS, scripted
from interp.llm.backend import AgentBackend, Settings
from interp.llm.plan import PAPER_REGIMES, Job, instances, plan
from interp.llm.runner import RunSummary, run
from interp.llm.schemes import Condition, built_in_prompts

CONDITIONS = (Condition("online", "no-note"), Condition("online", "note-only"), Condition("weather", "note-only"))


@checked
def demo_jobs(name: str, seed: int, n_instances: int, n_rounds: int) -> list[Job]:
    """What the demo plays with one agent: the paper's three regimes, with a note and without."""
    episodes = instances(PAPER_REGIMES, n_instances, n_rounds, 4, seed)
    return plan(Settings(name), built_in_prompts(), episodes, CONDITIONS)


@checked
def play_demo(folder: str | Path, seed: int = 0, n_instances: int = 4, n_rounds: int = 30) -> dict[str, RunSummary]:
    """Play every agent of :data:`~interp.llm.agents.PLAYERS` and write the traces below ``folder``."""
    return {
        name: run(demo_jobs(name, seed, n_instances, n_rounds), folder, AgentBackend(name, scripted(name)))
        for name in PLAYERS
    }
