"""The LSTM of an agent that ``sb3-contrib`` trained (RecurrentPPO, "MlpLstmPolicy"), read from the file that it saved.

The file is a zip archive; only the tensors of its ``policy.pth`` are read, and neither ``sb3-contrib`` nor anything
pickled is needed. What passes is the actor's ``h`` and ``c``; the critic, which acts on nothing, stays behind. An agent
sees an observation and then acts, so its LSTM hears a round before the prediction: in the rounds of Q-learning the new
state, and the action and reward that led there, where it was trained with them::

    machine = agent(read_agent("agent.zip"), "qlearning", sizes={"n_states": 4, "n_actions": 3}, hear=observed)

with ``observed`` what the environment showed it; here indicators of state and action, and the reward::

    >>> import torch, interp
    >>> from interp.tasks import qlearning
    >>> layout = qlearning.TASK.layout(n_states=4, n_actions=3)
    >>> state, action = (layout.token_ids[name] for name in ("s_1", "a_1"))
    >>> where = {label: layout.position(label) for label in ("s'", "a", "r")}
    >>> def observed(module, fed):
    ...     one_hot, tokens = torch.nn.functional.one_hot, fed.tokens
    ...     parts = one_hot(tokens[:, where["s'"]] - state, 4), one_hot(tokens[:, where["a"]] - action, 3)
    ...     return torch.cat([*(part.to(fed.values) for part in parts), fed.values[:, [where["r"]]]], 1)
    >>> machine = agent(Actor(n_inputs=8, width=8, policy=(8,), n_actions=3), layout, hear=observed, name="ppo")
    >>> [channel.name for channel in machine.channels], list(machine.points)[1:]
    (['h', 'c'], ['input', 'forget', 'new', 'output', 'policy'])
    >>> interp.check_machine(machine)
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from interp.checks import checked, file_path
from interp.errors import require
from interp.files import reading
from interp.machines.cells import Hear, cell
from interp.model.adapted import AdaptedMachine
from interp.model.layout import RoundLayout
from interp.task import Task

_ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


class Actor(nn.Module):
    """The acting half of a recurrent policy: an LSTM, a few linear layers, and a score for each action."""

    def __init__(
        self, n_inputs: int, width: int, policy: Sequence[int], n_actions: int, n_layers: int = 1, act: str = "tanh"
    ) -> None:
        super().__init__()
        self.core = nn.LSTM(n_inputs, width, num_layers=n_layers)
        parts: list[nn.Module] = []
        for size in policy:
            parts += [nn.Linear(width, size), _ACTIVATIONS[act]()]
            width = size
        self.policy, self.action = nn.Sequential(*parts), nn.Linear(width, n_actions)

    def scores(self, h: Tensor) -> Tensor:
        """The logits of the actions ``[batch, action]``, from the LSTM's ``h``."""
        scored: Tensor = self.action(self.policy(h))
        return scored


@checked
def read_agent(path: str | Path, *, activation: Literal["tanh", "relu", "elu"] = "tanh") -> Actor:
    """The actor in a file that RecurrentPPO of ``sb3-contrib`` saved, of discrete actions and of vectors observed.

    Args:
        activation: of the layers after the LSTM; the file says it only in a pickle, which is not opened.
    """
    path = Path(file_path(path, "the agent"))
    with reading(path, "give the file that model.save(...) of sb3-contrib wrote"), zipfile.ZipFile(path) as archive:
        held = torch.load(io.BytesIO(archive.read("policy.pth")), map_location="cpu", weights_only=True)
    weights = {new: value for name, value in held.items() if (new := _renamed(name))}
    missing = {"core.weight_ih_l0", "action.weight"} - weights.keys()
    require(not missing, f"{str(path)!r} holds no recurrent policy of discrete actions: it has {', '.join(held)}")
    features = [name for name in held if name.startswith(("features_extractor", "pi_features_extractor"))]
    require(
        not features,
        f"{str(path)!r} has a feature extractor with weights ({', '.join(features)}); only MlpLstmPolicy is read",
    )
    actor = Actor(**_sizes(weights), act=activation)
    with reading(path):
        actor.load_state_dict(weights)
    return actor.eval()


def _renamed(name: str) -> str:
    """Our name of a weight of sb3's policy; empty for what the actor has not."""
    for theirs, ours in (("lstm_actor", "core"), (r"mlp_extractor\.policy_net", "policy"), ("action_net", "action")):
        if re.match(rf"{theirs}\.", name):
            return re.sub(rf"^{theirs}", ours, name)
    return ""


def _sizes(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The sizes of an actor with these weights."""
    n_actions = len(weights["action.weight"])
    policy = [len(value) for name, value in weights.items() if re.fullmatch(r"policy\.\d+\.weight", name)]
    n_layers = sum(name.startswith("core.weight_hh_l") for name in weights)
    n_inputs, width = weights["core.weight_ih_l0"].shape[1], weights["core.weight_hh_l0"].shape[1]
    return {"n_inputs": n_inputs, "width": width, "policy": policy, "n_actions": n_actions, "n_layers": n_layers}


@checked
def agent(actor: Actor, task: str | Task | RoundLayout, *, hear: Hear, **options: Any) -> AdaptedMachine:
    """A machine of an agent: its prediction is the probability of each action.

    Args:
        task, options: as ``interp.adapt`` takes them.
        hear: ``(actor, fed)`` to the observation ``[batch, input]``, as the environment gave it.
    """
    points = {"policy": "policy", **(options.pop("points", None) or {})}
    return cell(
        actor, task, hear=hear, read=lambda actor, h, fed: actor.scores(h), hears="before", points=points, **options
    )
