"""Rollouts on disk: the same again, in part where asked, and refusals that say what to give."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import interp
from interp.model import saved
from interp.tasks import mdp
from tests.refusals import refuses

HOOKS = ["hook_embed", "blocks.0.hook_resid_post"]


@pytest.fixture(scope="module")
def run() -> interp.Rollout:
    model = interp.load("qlearning-handwired", n_states=2, n_actions=2)
    return interp.rollout(
        model, mdp.sample(3, 4, 2, 2, seed=0), names_filter=HOOKS, rounds=[1, 3], commit="target"
    )


def test_a_rollout_is_the_same_again(run: interp.Rollout, tmp_path: Path) -> None:
    again = saved.load(saved.save(run, tmp_path / "run.safetensors"))
    for name in ("predictions", "latents", "tokens", "values", "slots"):
        assert torch.equal(getattr(again, name), getattr(run, name))
    assert set(again.cache) == set(HOOKS)
    for name in HOOKS:
        assert torch.equal(again.cache[name], run.cache[name])
    assert (again.layout, again.commit, again.cached_rounds) == (run.layout, "target", (1, 3))
    assert again.settings["digest"] == run.settings["digest"]
    assert repr(again) == repr(run)
    assert len(repr(run)) < 200
    assert "3 episodes of 4 rounds" in repr(run)


def test_short_names_and_negative_layers_work_in_a_rollout_from_a_file(tmp_path: Path) -> None:
    model = interp.load("qlearning-handwired", n_states=2, n_actions=2)
    last = model.config.n_layers - 1
    names = [f"blocks.{layer}.hook_resid_post" for layer in (0, last)]
    run = interp.rollout(model, mdp.sample(3, 4, 2, 2, seed=0), names_filter=names)
    again = saved.load(saved.save(run, tmp_path / "run.safetensors"), names=names[1:])
    assert torch.equal(again.cache["resid_post", -1], run.cache["resid_post", last])
    refuses(
        r"unknown cached activation 'blocks\.0\.hook_resid_post'",
        lambda: again.cache["resid_post", 0],
    )


def test_only_what_is_asked_for_is_read(run: interp.Rollout, tmp_path: Path) -> None:
    path = saved.save(run, tmp_path / "run.safetensors")
    assert list(saved.load(path, names=HOOKS[:1]).cache) == HOOKS[:1]
    assert saved.load(path, names=[]).cache == {}
    refuses(
        r"unknown cached activation .*'hook_embd'; did you mean 'hook_embed'",
        saved.load,
        path,
        names=["hook_embd"],
    )


def test_what_is_no_rollout_is_refused(tmp_path: Path) -> None:
    refuses("no file", saved.load, tmp_path / "none.safetensors")
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    refuses("holds no rollout", saved.load, tmp_path / "other.safetensors")
