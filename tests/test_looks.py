"""What people look at first, at a prompt and in a notebook: a few lines, no walls of numbers, and figures that show."""

import numpy as np
import pytest

import interp
import probes
from interp.display import _MOST_ROWS, table_html
from interp.tasks import experts, mdp


def test_nothing_fills_the_screen() -> None:
    """Episodes, models, runs and caches take at most 12 lines; none shows an array."""
    episodes = experts.sample(6, 12, 2, seed=0)
    model = interp.load("wma-handwired", n_experts=2)
    run = interp.rollout(model, episodes, names_filter=lambda name: True)
    played = mdp.sample(n_episodes=2, n_rounds=5, n_states=3, n_actions=2, seed=0)
    for shown in (episodes, played, model, run, run.cache):
        assert len(repr(shown).splitlines()) <= 12 and "array(" not in repr(shown) and "tensor(" not in repr(shown)
    assert repr(episodes) == "ExpertEpisodes(6 episodes of 12 rounds, 2 experts, uniform regime, seed 0)"
    assert "latent [" in repr(model) and "2.1 update" in repr(model)
    assert "blocks.0.attn.hook_pattern  [6, 12, 3," in repr(run.cache)


def test_a_plot_shows_in_a_notebook() -> None:
    """A figure that pyplot did not make is drawn, not named; what was cut is counted."""
    episodes = experts.sample(10, 12, 2, seed=0)
    run = interp.rollout(interp.load("wma-handwired", n_experts=2), episodes)
    with pytest.warns(UserWarning, match="few"):
        result = probes.fit(run.latents[:, 1:], probes.targets.log_weights(episodes), groups="episode")
    assert result.plot()._repr_png_().startswith(b"\x89PNG")
    assert len(result._repr_html_().split("<tr")) - 2 <= _MOST_ROWS
    import pandas as pd

    assert "The first 10 of 40 rows" in table_html("A table", pd.DataFrame({"a": np.arange(40)}))
