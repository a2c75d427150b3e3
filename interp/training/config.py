"""The settings of a training run, as plain data that a TOML file or the command line can override.

    >>> from interp.training.goal import preset
    >>> run = replace_fields(preset("experts", "laptop"), parse_assignment("sizes.n_experts=[2, 8]"))
    >>> run.sizes, run.total_steps
    ({'n_experts': (2, 8)}, 2200)

The presets of a task belong to its goal (:class:`~interp.training.goal.TrainingGoal`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from interp.core import catalog
from interp.model.config import LatentTransformerConfig, LatentUpdate, PositionCodes
from interp.model.run import Commit
from interp.support.checks import checked_fields
from interp.support.errors import InputError, convert_errors, require, require_known

_MODEL_FIELDS = (
    "d_model",
    "n_layers",
    "n_heads",
    "d_mlp",
    "latent_update",
    "write_map",
    "position_codes",
    "init_std",
)
_POSITIVE_FIELDS = (
    "batch_size",
    "lr",
    "clip",
    "eval_every",
    "checkpoint_every",
    "eval_episodes",
    "eval_rounds",
    "epoch_steps",
    "d_model",
    "n_layers",
    "n_heads",
)
_FIELDS_FROM_ZERO = (
    "muon_lr",
    "window",
    "d_mlp",
    "dataset_episodes",
    "warmup_steps",
    "weight_decay",
    "patience",
    "patience_from_stage",
    "min_gain",
    "init_std",
)


_OMITTED_DEFAULTS: dict[str, Any] = {"machine": {}, "anneal_latents": (), "step_each": "window"}
"""Field -> the value at which a run's record omits it, so that older runs can be resumed."""


@dataclass(frozen=True)
@checked_fields
class Stage:
    """A stage of the curriculum: up to ``steps`` batches of episodes with ``n_rounds`` rounds.

    Attributes:
        n_rounds: number of rounds per episode.
        steps: maximum number of batches.
        sizes: name of a size of the episodes, such as "n_states" -> its largest value in this
            stage, or a pair (smallest, largest). A size that is 0 or missing here has only the
            bounds in the run's setting ``sizes``, which always hold.
        until: name of a number that evaluations compute -> threshold, such as
            ``{"accuracy": 0.95}``. The stage ends early after an evaluation in which every named
            number reaches its threshold. Empty if the stage does not end early for this reason.
            If the run has several ``regimes``, an evaluation with a single batch measures only the
            first.
    """

    n_rounds: int
    steps: int
    sizes: Mapping[str, int | Sequence[int]] = field(default_factory=dict)
    until: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes: dict[str, Any] = dict(self.sizes)
        for name, bound in sizes.items():
            if not isinstance(bound, int):
                sizes[name] = tuple(bound)
        object.__setattr__(self, "sizes", sizes)

    def bounds(self, size: str, low: int, high: int) -> tuple[int, int]:
        """Return (smallest, largest) value of a size of the episodes in this stage: the stage's
        bounds, limited to the bounds in the run's settings.

        Args:
            size: name of the size, such as "n_states".
            low, high: smallest and largest value in the run's settings.

        >>> stage = Stage(20, 500, {"n_states": 4, "n_actions": (3, 3)})
        >>> stage.bounds("n_states", 2, 8), stage.bounds("n_actions", 2, 4), stage.bounds("n_experts", 2, 8)
        ((2, 4), (3, 3), (2, 8))
        """
        bound = self.sizes.get(size) or high  # 0 is no bound
        if isinstance(bound, int):
            return low, min(bound, high)
        smallest, largest = bound
        return min(max(smallest, low), high), min(largest, high)

    def ends_early(self, evaluation: Mapping[str, float]) -> bool:
        """Return True if an evaluation ends the stage early, because all numbers in ``until`` reach
        their thresholds. Return False if ``until`` is empty.

        Args:
            evaluation: name of a number that the evaluation computed, such as "accuracy" -> its
                value.
        """
        for name in self.until:
            require_known("number that a stage waits for", name, evaluation)
        if not self.until:
            return False
        return all(evaluation[name] >= threshold for name, threshold in self.until.items())

    def check(self, index: int, run_sizes: Mapping[str, Sequence[int]]) -> None:
        """Raise InputError for a stage without batches, or with sizes that do not fit its run.

        Args:
            index: index of the stage in the curriculum, for the error message.
            run_sizes: name of a size -> its (smallest, largest) value in the run's settings.
        """
        require(
            self.n_rounds >= 1 and self.steps >= 1,
            f"stage {index} must have n_rounds >= 1 and steps >= 1, got {asdict(self)}",
        )
        for name, bound in self.sizes.items():
            require_known("size", name, run_sizes)
            largest: Any = bound
            if not isinstance(bound, int):
                require(
                    _is_range(bound),
                    f"stage {index} has {name} {list(bound)}; give one number, or [low, high]",
                )
                largest = bound[1]
            smallest = run_sizes[name][0]
            require(
                largest == 0 or largest >= smallest,
                f"stage {index} has {name} {bound}, below the run's smallest, {smallest}; "
                "use 0 for no bound of its own",
            )


@dataclass(frozen=True)
@checked_fields
class TrainingConfig:
    """The settings of a training run; presets of a task (:func:`interp.training.goal.preset`) are
    examples.

    Attributes:
        task: key of the task, such as "experts".
        stages: the curriculum, a sequence of stages, through which the run goes in order.
        d_model, n_layers, n_heads, d_mlp, latent_update, write_map, position_codes, init_std:
            settings of the transformer, as in
            :class:`~interp.model.config.LatentTransformerConfig`; ignored with a ``machine``.
        anneal_latents: two indices of batches (first, last), for a model that replaces its latents
            in each round. A round then writes ``a m + h`` into a latent, where m is the latent's
            old value and h the update. The factor a is 1 up to the first batch, falls linearly to 0
            at the last, and stays 0. No stage may then end early. If the setting is empty, a is 0
            from the beginning.
        machine: a registered model to train instead of a transformer, such as
            ``{"builder": "gru", "arguments": {"d": 16}}``; empty for a transformer.
        sizes: name of a size of the task's episodes, such as "n_experts" -> its smallest and
            largest value. Sizes that are not named have the task's default value.
        start: the weights before the first batch. Either the name or checkpoint folder of a trained
            model, to continue from its weights; or the name of a way to set initial weights that
            the task defines (``starts`` of its :class:`~interp.training.goal.TrainingGoal`). Empty
            keeps the random initial weights.
        targets: what the model learns to predict, if the task defines several targets: one of the
            names in ``other_targets`` of its :class:`~interp.training.goal.TrainingGoal`. Empty for
            the task's main targets.
        regimes: names of the regimes (distributions of episodes) to sample from; each batch takes
            the next one in turn. Evaluations during training take turns, too: one with a single
            batch measures the first regime alone. Empty for the task's default regime.
        dataset_episodes: number of episodes in a fixed data set, rounded up to full batches; 0
            samples new episodes for every batch.
        commit: some layouts have a position for the model's choice, which the model reads after its
            prediction (Q-learning's ``a*``). This setting says what stands there: "own", the
            outcome that the model predicts with the highest probability; or "target", the outcome
            that is to be predicted.
        mix: probability that a batch is drawn with the settings of an earlier stage of the
            curriculum, so that the model does not forget them.
        batch_size: number of episodes per batch.
        lr, weight_decay, betas: settings of AdamW; ``lr`` is the highest learning rate.
        warmup_steps: number of batches in which learning rates rise to the highest.
        clip: largest norm of the gradient; longer gradients are shortened to it.
        decay: how learning rates fall to zero after the warm-up: along a "cosine", or "linear" in
            the second half of the run.
        muon_lr: learning rate of Muon for the blocks' weight matrices, on AdamW's scale. 0 trains
            everything with AdamW, as is always done for a ``machine``.
        window: number of rounds through which gradients flow back (truncated backpropagation);
            after them, the state is detached. 0 never detaches it.
        step_each: "window" makes an optimizer step after each window; "batch" makes one per batch,
            with the mean gradient of its rounds.
        epoch_steps: number of batches in an epoch. At the end of each epoch, its mean loss is
            compared with the lowest mean loss of earlier epochs in the same stage.
        patience: number of epochs in a row without progress after which a stage ends early. An
            epoch makes progress if its mean loss is more than ``min_gain`` below the lowest of
            earlier epochs. With 0, no stage ends early for this reason.
        patience_from_stage: index of the first stage that may end early by ``patience``.
        precision: "bfloat16" runs the forward pass under autocast. "auto" chooses bfloat16 if the
            hardware has units for it (:mod:`interp.training.trainer`).
        compile: whether to compile a transformer's round with torch.compile.
        eval_every: number of batches between evaluations, on episodes that are not trained on.
        checkpoint_every: number of batches between the times when the training checkpoint is
            written, from which an interrupted run is resumed.
        eval_episodes, eval_rounds: number of episodes of an evaluation, and of rounds of each.
        seed: seed of the initial weights, the batches and the episodes of evaluations.
        min_gain: how much lower an epoch's mean loss must be to count as progress (``patience``).
    """

    task: str
    stages: Sequence[Stage | dict[str, Any]]
    d_model: int = 64
    n_layers: int = 4
    n_heads: int = 4
    d_mlp: int = 256
    latent_update: LatentUpdate = "add"
    anneal_latents: tuple[int, ...] = ()
    write_map: bool = False
    position_codes: PositionCodes = "index"
    init_std: float = 0.08
    machine: Mapping[str, Any] = field(default_factory=dict)
    start: str = ""
    targets: str = ""
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    regimes: tuple[str, ...] = ()
    dataset_episodes: int = 0
    commit: Commit = "own"
    mix: float = 0.1
    batch_size: int = 64
    lr: float = 1e-3
    muon_lr: float = 0.0
    warmup_steps: int = 100
    decay: Literal["cosine", "linear"] = "cosine"
    weight_decay: float = 1e-2
    betas: tuple[float, ...] = (0.9, 0.95)
    clip: float = 1.0
    window: int = 0
    step_each: Literal["window", "batch"] = "window"
    epoch_steps: int = 300
    patience: int = 0
    patience_from_stage: int = 0
    min_gain: float = 1e-3
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    compile: bool = False
    seed: int = 0
    eval_every: int = 250
    checkpoint_every: int = 100
    eval_episodes: int = 256
    eval_rounds: int = 100

    def __post_init__(self) -> None:
        """Fill in what ``machine`` and ``sizes`` leave out, convert the stages to :class:`Stage`,
        and refuse wrong values.
        """
        # The class is frozen, so fields are set by object.__setattr__.
        if self.machine:
            object.__setattr__(self, "machine", {"arguments": {}, **self.machine})
            self._check_machine()
        object.__setattr__(self, "sizes", self._list_sizes())
        require(self.stages, "stages must hold at least one stage")
        # Dictionaries become Stage once; `curriculum` returns the same stages from here on.
        object.__setattr__(self, "stages", self.curriculum)
        if self.anneal_latents:
            self._check_annealing()
        for index, stage in enumerate(self.curriculum):
            stage.check(index, self.sizes)
        self._check_numbers()

    def _list_sizes(self) -> dict[str, tuple[int, int]]:
        """Return the bounds (smallest, largest) of every size of the task; for a size that the run
        does not name, both are the task's default value.
        """
        sizes = {size.name: (size.default, size.default) for size in catalog.get(self.task).sizes}
        for name, bounds in self.sizes.items():
            require_known("size", name, sizes)
            require(_is_range(bounds), f"{name} must be [low, high], got {list(bounds)}")
            sizes[name] = (bounds[0], bounds[1])
        return sizes

    def _check_machine(self) -> None:
        """Refuse a field ``machine`` without a builder's name and arguments, and settings that only
        transformers have.
        """
        builder = self.machine.get("builder")
        arguments = self.machine["arguments"]  # __post_init__ has set them to {} if there are none
        is_recipe = isinstance(builder, str) and isinstance(arguments, Mapping)
        require(
            is_recipe and len(self.machine) == 2,
            f'machine must be {{"builder": NAME, "arguments": {{...}}}}, got {self.machine!r}',
        )
        require(
            not self.compile,
            "compile is for transformers; leave it out where a machine is trained",
        )
        require(
            self.precision != "bfloat16",
            "precision 'bfloat16' is for transformers: a machine is trained in its own; set 'float32' or 'auto'",
        )

    def _check_numbers(self) -> None:
        """Refuse fields with numbers outside their range."""
        for name in _POSITIVE_FIELDS:
            value = getattr(self, name)
            require(value > 0, f"{name} must be positive, got {value!r}")
        for name in _FIELDS_FROM_ZERO:
            value = getattr(self, name)
            require(value >= 0, f"{name} must be 0 or more, got {value!r}")
        are_betas = len(self.betas) == 2 and all(0.0 <= beta < 1.0 for beta in self.betas)
        require(are_betas, f"betas must be two numbers in [0, 1), got {list(self.betas)}")
        require(0.0 <= self.mix < 1.0, f"mix must lie in [0, 1), got {self.mix}")
        require(
            self.d_model % self.n_heads == 0,
            f"d_model {self.d_model} must be a multiple of n_heads {self.n_heads}",
        )

    def _check_annealing(self) -> None:
        """Refuse ``anneal_latents`` unless training is certain to end with replaced latents.

        It is refused if its two batches are out of order or beyond the end of the run, or if the
        model adds updates to its latents. It is also refused if stages may end early, because
        training could then end before the last of the two batches.
        """
        require(
            self.latent_update == "replace" and not self.machine,
            "anneal_latents is for transformers whose latents are replaced; set latent_update = 'replace' or leave "
            "it out",
        )
        have_fixed_lengths = not self.patience and not any(stage.until for stage in self.curriculum)
        require(
            have_fixed_lengths,
            "anneal_latents needs stages that never end early, so that training ends with replaced latents; leave out "
            "patience and until",
        )
        bounds = self.anneal_latents
        in_order = len(bounds) == 2 and 0 <= bounds[0] < bounds[1] < self.total_steps
        require(
            in_order,
            f"anneal_latents must be [first, last] with 0 <= first < last < {self.total_steps}, the batches of all "
            f"stages, so that training ends with replaced latents; got {list(bounds)}",
        )

    def latent_kept(self, step: int) -> float:
        """Return the factor a of a latent's old value m while batch ``step`` is trained on: a round
        writes ``a m + h`` with the update h. So with a = 1 the update is added to the latent, and
        with a = 0 it replaces the latent. The setting ``anneal_latents`` lowers a from 1 to 0
        during training.

        >>> from interp.training.goal import preset
        >>> annealed = {"latent_update": "replace", "anneal_latents": [300, 1200]}
        >>> replaced = replace_fields(preset("experts", "laptop"), annealed)
        >>> [replaced.latent_kept(step) for step in (0, 300, 750, 1200, 5000)]
        [1.0, 1.0, 0.5, 0.0, 0.0]
        """
        if self.latent_update == "add":
            return 1.0
        if not self.anneal_latents:
            return 0.0
        first, last = self.anneal_latents
        fallen = (step - first) / (last - first)
        return 1.0 - min(max(fallen, 0.0), 1.0)

    @property
    def curriculum(self) -> tuple[Stage, ...]:
        """The stages of the curriculum. Those that were passed as dictionaries are converted to
        :class:`Stage`.
        """
        return tuple(map(_make_stage, self.stages))

    @property
    def total_steps(self) -> int:
        """Number of batches in all stages together, if no stage ends early."""
        return sum(stage.steps for stage in self.curriculum)

    def model_config(self, name: str) -> LatentTransformerConfig:
        """Return the configuration of the transformer that this run trains.

        Args:
            name: name of the model.
        """
        sizes: dict[str, Any] = {}
        for size, (low, high) in self.sizes.items():
            sizes[size] = high
            if low < high:  # a layout of one size needs no range
                sizes[f"{size}_range"] = (low, high)
        layout = catalog.get(self.task).layout(**sizes)
        return LatentTransformerConfig(
            layout=layout,
            output="logits" if layout.kind == "classes" else "value",
            d_head=self.d_model // self.n_heads,
            name=name,
            origin={"training": self.to_dict()},
            **{field: getattr(self, field) for field in _MODEL_FIELDS},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary {name: value that JSON can store}. A field that was
        added later is left out while it has its default, so that older runs can be resumed.
        """
        values = asdict(self)
        for name, default in _OMITTED_DEFAULTS.items():
            if values[name] == default:
                del values[name]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingConfig:
        """Make a configuration from a dictionary that :meth:`to_dict` returned.

        Args:
            values: the fields by name; "task" and "stages" are required.

        Raises:
            InputError: an unknown field, or a required one is missing.
        """
        require(
            isinstance(values, Mapping),
            f"a training configuration is a table of fields, got {values!r}",
        )
        _require_fields(values)
        for name in ("task", "stages"):
            require(name in values, f"a training configuration needs the field {name!r}")
        return cls(**values)


def _is_range(bounds: Sequence[int]) -> bool:
    """Return True for a pair (smallest, largest) of positive numbers."""
    return len(bounds) == 2 and 1 <= bounds[0] <= bounds[1]


def _make_stage(stage: Any) -> Stage:
    """Return ``stage`` as a :class:`Stage`; a dictionary of its fields is converted."""
    if isinstance(stage, Stage):
        return stage
    names = {known.name for known in fields(Stage)}
    require(
        isinstance(stage, dict),
        f"a stage is a table with {', '.join(sorted(names))}, got {stage!r}",
    )
    for name in stage:
        require_known("stage field", name, names)
    for name in ("n_rounds", "steps"):
        require(name in stage, f"a stage needs {name}, got {stage!r}")
    return Stage(**stage)


def _require_fields(values: Mapping[str, Any]) -> None:
    """Refuse names that are not fields of :class:`TrainingConfig`."""
    names = [known.name for known in fields(TrainingConfig)]
    for name in values:
        require_known("training field", name, names, limit=50)


def replace_fields(config: TrainingConfig, values: dict[str, Any]) -> TrainingConfig:
    """Return a copy of a training configuration with some fields replaced. In the field ``sizes``,
    only the sizes that ``values`` names are replaced.

    Args:
        config: the configuration.
        values: the new values by name of the field; unknown fields and wrong types are refused.
    """
    _require_fields(values)
    task = values.get("task", config.task)
    require(
        task == config.task,
        f"task cannot be set: the preset is one of {config.task!r}; start from a preset of {task!r}",
    )
    for name, bounds in values.get("sizes", {}).items():
        require(isinstance(bounds, list | tuple), f"{name} must be [low, high], got {bounds!r}")
    return replace(config, **merge({"sizes": config.sizes}, values))


def merge(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return a dictionary with the fields of both arguments. If both have a field, the value in
    ``more`` is taken. The field ``sizes`` is a dictionary itself, and its entries are merged in the
    same way.

    Args:
        values: settings of a training run, {name of a field: value}.
        more: further settings, which have priority.
    """
    merged = {**values, **more}
    if "sizes" in values and isinstance(more.get("sizes"), dict):
        merged["sizes"] = {**values["sizes"], **more["sizes"]}
    return merged


def parse_assignment(text: str) -> dict[str, Any]:
    """Parse a text ``FIELD=VALUE``, with the value in TOML, to a dictionary: "lr=3e-4" to
    ``{"lr": 0.0003}``, and "sizes.n_experts=[2, 8]" to ``{"sizes": {"n_experts": [2, 8]}}``.
    """
    with convert_errors(
        f"{text!r} is not FIELD=VALUE with a TOML value, such as lr=3e-4: {{error}}", of=ValueError
    ):
        return tomllib.loads(text)


@cache
def read_goal_file(task: str) -> Mapping[str, Any]:
    """Read the TOML file with the training presets of a task that comes with the package.

    A preset in the file may take its settings from an earlier preset (field ``like``) and change
    some.

    Args:
        task: key of the task.

    Returns:
        Arguments of :class:`~interp.training.goal.TrainingGoal` by name: "presets" maps the name of
        a preset to its settings; "floor", "learns" and "limits" are texts for model cards.

    >>> sorted(read_goal_file("experts")["presets"])
    ['laptop', 'laptop-replaced', 'laptop-wide', 'paper']
    """
    tables = read_toml(Path(__file__).parent / "goals" / f"{task}.toml")
    texts = tables.pop("about")  # every other table is a preset
    presets: dict[str, TrainingConfig] = {}
    for name, values in tables.items():
        if "like" in values:
            values = {**presets[values.pop("like")].to_dict(), **values}
        presets[name] = TrainingConfig.from_dict(values)
    return dict(texts, limits=tuple(texts["limits"]), presets=presets)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file as a dictionary."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} is not valid TOML in UTF-8: {error}") from error
