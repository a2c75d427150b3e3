"""What a training run is: a preset, every field of which a TOML file or the command line can override.

Presets: ``laptop`` (one CPU core, half an hour to an hour and three quarters) and ``paper`` (the paper's sections F.1
and F.2, for a GPU).
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from interp.errors import InputError, require, unknown_name
from interp.model.config import LatentTransformerConfig, LatentUpdate, PositionCodes
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.layout import QLearningRound
from interp.model.rollout import Commit

Task = Literal["wma", "qlearning"]
Precision = Literal["float32", "bfloat16"]
Decay = Literal["cosine", "linear"]


@dataclass(frozen=True)
class Stage:
    """A stage of the curriculum: ``steps`` batches of episodes of ``n_rounds`` rounds.

    ``n_actions``, ``n_states`` and ``n_experts`` bound the sizes from above; 0 leaves the run's own bound.
    """

    n_rounds: int
    steps: int
    n_actions: int = 0
    n_states: int = 0
    n_experts: int = 0


@dataclass(frozen=True)
class TrainingConfig:
    """A training run; see the presets for values.

    Attributes:
        task: "wma" (prediction with expert advice) or "qlearning" (imitation of tabular Q-learning).
        d_model, n_layers, n_heads, d_mlp, latent_update, write_map, position_codes, init_std: the
            model.
        n_experts: smallest and largest number of experts (wma).
        n_states, n_actions: smallest and largest sizes (qlearning).
        regimes: episodes are drawn from these regimes in turn, a batch each.
        dataset_episodes: 0 generates fresh episodes for every step; otherwise the size of a fixed data set.
        commit: the a* token is the model's "own" choice or the recorded "target" (qlearning).
        stages: the curriculum.
        mix: probability that a batch has the length of an earlier stage.
        batch_size, lr, warmup_steps, weight_decay, betas, clip: optimisation by AdamW.
        decay: how the rates reach zero after the warm-up: "cosine", or "linear" in the second half of the run.
        muon_lr: learning rate of Muon for the blocks' weight matrices, on AdamW's scale; 0 leaves all to AdamW.
        window: truncated backpropagation: after every this many rounds an optimizer step is made and the latents are
            detached; 0 makes one step of the whole episode.
        epoch_steps, patience, patience_from_stage: a stage ends early when the mean loss of ``patience`` epochs in a
            row brought no gain of ``min_gain``, from the given stage on; patience 0 never stops early.
        precision: "bfloat16" runs the forward pass under autocast.
        compile: run the round step through torch.compile.
        eval_every, checkpoint_every: in batches.
        eval_episodes, eval_rounds: size of the held-out evaluation during training.
    """

    task: str
    stages: Sequence[Stage | dict[str, Any]]
    d_model: int = 64
    n_layers: int = 4
    n_heads: int = 4
    d_mlp: int = 256
    latent_update: str = "add"
    write_map: bool = False
    position_codes: str = "index"
    init_std: float = 0.08
    n_experts: Sequence[int] = (4, 4)
    n_states: Sequence[int] = (2, 8)
    n_actions: Sequence[int] = (2, 4)
    regimes: Sequence[str] = ("uniform",)
    dataset_episodes: int = 0
    commit: str = "own"
    mix: float = 0.1
    batch_size: int = 64
    lr: float = 1e-3
    muon_lr: float = 0.0
    warmup_steps: int = 100
    decay: str = "cosine"
    weight_decay: float = 1e-2
    betas: Sequence[float] = (0.9, 0.95)
    clip: float = 1.0
    window: int = 0
    epoch_steps: int = 300
    patience: int = 0
    patience_from_stage: int = 0
    min_gain: float = 1e-3
    precision: str = "float32"
    compile: bool = False
    seed: int = 0
    eval_every: int = 250
    checkpoint_every: int = 100
    eval_episodes: int = 256
    eval_rounds: int = 100

    def __post_init__(self) -> None:
        for name, literal in {
            "task": Task,
            "commit": Commit,
            "precision": Precision,
            "decay": Decay,
            "latent_update": LatentUpdate,
            "position_codes": PositionCodes,
        }.items():
            if getattr(self, name) not in get_args(literal):
                raise unknown_name(name, getattr(self, name), get_args(literal))
        require(len(self.stages) > 0, "stages must hold at least one stage")
        object.__setattr__(self, "stages", self.curriculum)
        for i, stage in enumerate(self.curriculum):
            ok = stage.n_rounds >= 1 and stage.steps >= 1
            require(ok, f"stage {i} must have n_rounds >= 1 and steps >= 1, got {asdict(stage)}")
            for name in ("n_experts", "n_states", "n_actions"):
                bound, low = getattr(stage, name), getattr(self, name)[0]
                message = (
                    f"stage {i} has {name} {bound}, below the run's smallest, {low}; use 0 for no bound of its own"
                )
                require(bound == 0 or bound >= low, message)
        for name in ("n_experts", "n_states", "n_actions", "betas", "regimes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("n_experts", "n_states", "n_actions"):
            bounds = getattr(self, name)
            require(len(bounds) == 2 and 1 <= bounds[0] <= bounds[1], f"{name} must be [low, high], got {list(bounds)}")
        positive = ("batch_size", "lr", "clip", "eval_every", "checkpoint_every", "eval_episodes", "eval_rounds")
        for name in (*positive, "epoch_steps", "d_model", "n_layers", "n_heads"):
            require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)!r}")
        for name in ("muon_lr", "window"):
            require(getattr(self, name) >= 0, f"{name} must be 0 or more, got {getattr(self, name)!r}")
        require(0.0 <= self.mix < 1.0, f"mix must lie in [0, 1), got {self.mix}")
        require(
            self.d_model % self.n_heads == 0, f"d_model {self.d_model} must be a multiple of n_heads {self.n_heads}"
        )

    @property
    def curriculum(self) -> tuple[Stage, ...]:
        """The stages, each a :class:`Stage`."""
        return tuple(stage if isinstance(stage, Stage) else _stage(stage) for stage in self.stages)

    @property
    def total_steps(self) -> int:
        return sum(stage.steps for stage in self.curriculum)

    def model_config(self, name: str) -> LatentTransformerConfig:
        """The configuration of the model that this run trains."""
        layout = (
            ExpertRound(self.n_experts[1], _pair(self.n_experts))
            if self.task == "wma"
            else QLearningRound(self.n_states[1], self.n_actions[1], _pair(self.n_states), _pair(self.n_actions))
        )
        return LatentTransformerConfig(
            layout=layout,
            d_model=self.d_model,
            n_layers=self.n_layers,
            n_heads=self.n_heads,
            d_head=self.d_model // self.n_heads,
            d_mlp=self.d_mlp,
            latent_update=self.latent_update,
            write_map=self.write_map,
            position_codes=self.position_codes,
            init_std=self.init_std,
            name=name,
            origin={"training": self.to_dict()},
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


def _pair(bounds: Sequence[int]) -> tuple[int, int]:
    return bounds[0], bounds[1]


def _stage(given: Any) -> Stage:
    known = {f.name for f in fields(Stage)}
    require(isinstance(given, dict), f"a stage is a table with {', '.join(sorted(known))}, got {given!r}")
    for name in given:
        if name not in known:
            raise unknown_name("stage field", name, known)
    return Stage(**given)


def _lengths(*pairs: tuple[int, int]) -> tuple[Stage, ...]:
    return tuple(Stage(n_rounds, steps) for n_rounds, steps in pairs)


_WMA_LAPTOP = TrainingConfig(
    task="wma",
    stages=_lengths((20, 1000), (30, 600), (50, 400), (100, 200)),
    muon_lr=2e-3,
    window=25,
    precision="bfloat16",
    warmup_steps=50,
    decay="linear",
    eval_every=100,
)
_WMA_PAPER = TrainingConfig(
    task="wma",
    stages=_lengths(*((5 * i if i <= 10 else 50 + 15 * (i - 10), 9000) for i in range(1, 14))),
    latent_update="replace",
    init_std=0.02,
    dataset_episodes=3000,
    lr=1e-4,
    batch_size=32,
    patience=3,
    patience_from_stage=5,
)
_Q_LAPTOP = TrainingConfig(
    task="qlearning",
    # Few states first: where every entry of the table is visited often, values matter from the first rounds.
    stages=(
        Stage(15, 80, n_actions=2, n_states=2),
        Stage(15, 120, n_actions=2, n_states=4),
        Stage(15, 200, n_actions=3),
        *_lengths((20, 500), (25, 1200), (50, 600), (100, 400)),
    ),
    d_model=128,
    d_mlp=512,
    muon_lr=2e-3,
    window=25,
    write_map=True,
    position_codes="label",
    precision="bfloat16",
    warmup_steps=50,
    regimes=("grid", "grid", "grid", "deterministic", "ladder"),
    eval_every=100,
    eval_rounds=50,
)
_Q_PAPER = TrainingConfig(
    task="qlearning",
    stages=tuple(Stage(50, 6500, n) for n in (2, 3, 4)),
    d_model=256,
    n_heads=8,
    d_mlp=1024,
    init_std=0.02,
    dataset_episodes=45_000,
    lr=1e-4,
    warmup_steps=500,
    window=10,
    precision="bfloat16",
    regimes=("grid",),
    eval_every=500,
    eval_rounds=50,
)
PRESETS: dict[tuple[str, str], TrainingConfig] = {
    ("wma", "laptop"): _WMA_LAPTOP,
    ("wma", "paper"): _WMA_PAPER,
    # With accuracies U[0, 1] alone the vote says nothing, and the run never leaves ln 2: the uniform regime starts it.
    ("wma-wide", "laptop"): replace(
        _WMA_LAPTOP,
        stages=(Stage(20, 300, n_experts=4), *_lengths((20, 700), (30, 500), (50, 400), (100, 200))),
        n_experts=(2, 8),
        regimes=("uniform", "wide"),
        position_codes="label",
    ),
    ("qlearning", "laptop"): _Q_LAPTOP,
    ("qlearning", "paper"): _Q_PAPER,
}


def preset(model: str, name: str) -> TrainingConfig:
    """The preset ``name`` ("laptop", "paper") for ``model`` ("wma", "wma-wide", "qlearning").

    Raises:
        InputError: no such model or preset.
    """
    models = {m for m, _ in PRESETS}
    if model not in models:
        raise unknown_name("model to train", model, models)
    if (model, name) not in PRESETS:
        raise unknown_name(f"preset for {model}", name, (p for m, p in PRESETS if m == model))
    return PRESETS[model, name]


def override(config: TrainingConfig, values: dict[str, Any]) -> TrainingConfig:
    """``config`` with fields replaced.

    Raises:
        InputError: an unknown field, or a value of the wrong type.
    """
    known = {f.name: f for f in fields(TrainingConfig)}
    for name, value in values.items():
        if name not in known:
            raise unknown_name("training field", name, known, limit=50)
        current = getattr(config, name)
        numbers = isinstance(current, int | float) and not isinstance(current, bool)
        kind: Any = (int, float) if numbers else (list, tuple) if isinstance(current, tuple) else type(current)
        if not isinstance(value, kind) or (isinstance(current, int) and isinstance(value, float)):
            raise InputError(f"{name} must be like {current!r}, got {value!r}")
    return replace(config, **values)


def parse_assignment(text: str) -> dict[str, Any]:
    """``FIELD=VALUE``, the value in TOML, as a dictionary of one.

    Raises:
        InputError: no ``=``, or the value is not TOML.

    >>> parse_assignment("lr=3e-4")
    {'lr': 0.0003}
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{text!r} is not FIELD=VALUE with a TOML value, such as lr=3e-4: {error}") from error


def read_toml(path: str | Path) -> dict[str, Any]:
    """The fields in a TOML file.

    Raises:
        InputError: the file is missing or not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{str(path)!r} is not valid TOML: {error}") from error
