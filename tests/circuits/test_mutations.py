"""Single faults in circuits, reference algorithms and models: verification catches all but those listed here.

Each fault changes one thing: a head's score, value, rule, gate or sink, a neuron, an embedding, a latent, one equation
of the algorithm that the model is held against, or one step of the model. :data:`SURVIVORS` names those that pass, with
the reason; a fault that newly passes, or one listed that is now caught, fails the test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

import circuits
from circuits.circuit import Circuit
from circuits.compiler import compile_circuit
from circuits.heads import Head, Neuron
from circuits.registry import handwired
from circuits.verification import check
from interp.algorithm import Variable
from interp.model.transformer import HookedLatentTransformer

Made = Circuit | HookedLatentTransformer
Fault = Callable[[Circuit], Made]

MACHINES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "R": ("wma-handwired", 3, {"n_experts": 3}),
    "P": ("wma-handwired", 3, {"n_experts": 3, "variant": "P"}),
    "mlp": ("qlearning-handwired", (3, 3), {"n_states": 3, "n_actions": 3}),
}
_UNUSED = "no location, and nothing that the circuit computes reads it"
_FIRST_TERM = "the first term scores a key that no firing query wants, and hard attention stays where it was"
SURVIVORS: dict[str, dict[str, str]] = {
    "R": {
        "1.2 state tag: scaled_value": "the tag still wins over the sink, by a little more",
        "2.3 carry z: without_sink": "silent queries average experts into id, where nothing reads them later",
        "3.3 clean up: without_sink": "w? is last and chooses itself; what others write after layer 3 is not read",
    },
    "P": {
        "1.2 state tag: scaled_value": "the tag still wins over the sink, by a little more",
        "2.1 fetch z: without_sink": "silent queries average experts into buf2, where only p? and w? are read",
        "3.1 predict: without_sink": "w? gathers votes into buf3, which the clean-up head of the next layer removes",
    },
    "mlp": {
        **{f"{head}: negated_score": _FIRST_TERM for head in (
            "1.1 state to actions", "1.2 state to Select", "1.3 state to reward", "1.4 current-phase tag"
        )},
        "1.1 state to actions: without_sink": "silent queries meet no state one token back that is read later",
        "1.4 current-phase tag: without_sink": "silent queries find no Qcurr two tokens back",
        **{f"equation of {key}": _UNUSED for key in (
            *("table_visited", "state_values", "column_visited", "current_values", "best_column", "next_visits"),
            *("next_column_visited", "greedy_action"),
        )},
    },
}  # fmt: skip
"""Faults that pass, and why they change nothing that the machine computes; besides :data:`EVERYWHERE`."""

EVERYWHERE = {
    "a stray axis in an outcome": "nothing ever writes that axis at the prediction",
    "model: position_of_another": "the last position reads by content, and its code is stripped from the update",
}
for _machine in ("R", "P"):
    SURVIVORS[_machine] |= {
        "equation of log_weights_centred": _UNUSED,
        "equation of weights": "the prediction divides by the sum of the weights",
        "model: slot_of_the_next": "there is one slot",
    }

OTHER_RULE = {"hard": "softmax", "softmax": "hard", "linear": "softmax"}


@cache
def built(machine: str) -> tuple[Circuit, Any]:
    """A circuit, and the episodes that it is verified on."""
    name, _, arguments = MACHINES[machine]
    circuit = circuits.build(name, **arguments)
    return circuit, handwired(name).plan.episodes(circuit, 30, 6, 0)


def passes(machine: str, fault: Fault | None = None) -> bool:
    """Whether verification of a faulty machine passes, in float64."""
    name, size, _ = MACHINES[machine]
    circuit, episodes = built(machine)
    made = circuit if fault is None else fault(circuit)
    model = made if isinstance(made, HookedLatentTransformer) else None
    held = made if isinstance(made, Circuit) else circuit
    return all(entry.passed for entry in check(held, episodes, size, "float64", handwired(name).plan, model))


# Faults of the circuit.


def change_head(head: str, changed: Callable[[Head], Head]) -> Fault:
    def fault(circuit: Circuit) -> Circuit:
        return replace(circuit, heads=tuple(changed(h) if h.name == head else h for h in circuit.heads))

    return fault


def scaled_value(head: Head) -> Head:
    (read, write), *others = head.moves
    return replace(head, moves=((read, 1.01 * write), *others))


def negated_score(head: Head) -> Head:
    (query, key), *others = head.scores
    return replace(head, scores=((-query, key), *others))


def without_sink(head: Head) -> Head:
    return replace(head, scores=head.scores[:-1])


def without_value(head: Head) -> Head:
    return replace(head, moves=head.moves[1:])


def silent(head: Head) -> Head:
    return replace(head, moves=tuple((read, 0.0 * write) for read, write in head.moves))


def other_rule(head: Head) -> Head:
    return replace(head, rule=OTHER_RULE[head.rule])  # type: ignore[arg-type]


def one_later(head: Head) -> Head:
    """The offset of a fixed-offset head is one less: keys of one-hot codes move on by one."""
    terms = [(q, k) for q, k in head.scores if next(iter(k.coefficients))[0] == "pos" and len(k.coefficients) == 1]
    keys = [k for _, k in terms][1:]
    moved = tuple((q, k) for (q, _), k in zip(terms[:-1], keys, strict=True))
    return replace(head, scores=(*moved, *(term for term in head.scores if term not in terms)))


HEAD_FAULTS = (scaled_value, negated_score, without_sink, without_value, other_rule)


def change_neuron(index: int, changed: Callable[[Neuron], Neuron]) -> Fault:
    def fault(circuit: Circuit) -> Circuit:
        return replace(circuit, neurons=tuple(changed(n) if i == index else n for i, n in enumerate(circuit.neurons)))

    return fault


def neuron_faults(circuit: Circuit) -> dict[str, Fault]:
    faults: dict[str, Fault] = {}
    for name in dict.fromkeys(neuron.name for neuron in circuit.neurons):
        index = next(i for i, neuron in enumerate(circuit.neurons) if neuron.name == name)
        faults[f"{name}: bias"] = change_neuron(index, lambda n: replace(n, bias=n.bias + 0.1))
        faults[f"{name}: written"] = change_neuron(index, lambda n: replace(n, write=1.01 * n.write))
        faults[f"{name}: one removed"] = change_neuron(index, lambda n: replace(n, write=0.0 * n.write))
    return faults


def tables(circuit: Circuit) -> dict[str, Fault]:
    """Faults of embeddings, payloads, latents and outcomes."""
    first, second = circuit.layout.outcomes[:2]
    names, latents = list(circuit.tokens), circuit.latents
    stray = circuit.basis[circuit.basis.blocks[2][0]][circuit.basis.blocks[2][1][0]]
    own = circuit.layout.outcomes[0]
    faults: dict[str, Fault] = {
        "two outcomes exchanged in the embedding": lambda c: replace(
            c, tokens={**c.tokens, first: c.tokens[second], second: c.tokens[first]}
        ),
        "an outcome embedded too long": lambda c: replace(c, tokens={**c.tokens, own: 1.01 * c.tokens[own]}),
        "the first token embedded as the last": lambda c: replace(
            c, tokens={**c.tokens, names[0]: c.tokens[names[-1]]}
        ),
        "an initial latent that is not empty": lambda c: replace(
            c, latents=(latents[0] + 0.01 * c.state[0], *latents[1:])
        ),
        "outcomes exchanged": lambda c: replace(c, outcomes=(c.outcomes[1], c.outcomes[0], *c.outcomes[2:])),
        "an outcome read too long": lambda c: replace(c, outcomes=(*c.outcomes[:-1], 1.01 * c.outcomes[-1])),
        "the state read too long": lambda c: replace(c, state=(1.01 * c.state[0], *c.state[1:])),
        "two axes of the state exchanged": lambda c: replace(c, state=(c.state[1], c.state[0], *c.state[2:])),
        "a stray axis in an outcome": lambda c: replace(c, outcomes=(*c.outcomes[:-1], c.outcomes[-1] + stray)),
    }
    if circuit.payloads:
        faults["a payload too large"] = lambda c: replace(c, payloads={k: 1.01 * d for k, d in c.payloads.items()})
    return faults


# Faults of the algorithm.


def change_equation(key: str) -> Fault:
    """One variable is computed wrongly: one class on, or one per cent too large."""

    def fault(circuit: Circuit) -> Circuit:
        def changed(variable: Variable) -> Variable:
            right = variable.equation
            if variable.key != key or right is None:
                return variable

            def wrong(values: Any) -> np.ndarray:
                assert right is not None
                if variable.n_classes is not None:
                    return (right(values) + 1) % variable.n_classes(values)
                return 1.01 * right(values)

            return replace(variable, equation=wrong)

        made = replace(circuit.algorithm, variables=tuple(map(changed, circuit.algorithm.variables)))
        return replace(circuit, algorithm=made)

    return fault


# Faults of the model.


def broken(damage: Callable[[HookedLatentTransformer], None], circuit: Circuit) -> HookedLatentTransformer:
    model = compile_circuit(circuit)
    with torch.no_grad():
        damage(model)
    return model


def slot_of_the_next(model: HookedLatentTransformer) -> None:
    write = model.write
    model.write = lambda latents, update, slots: write(latents, update, (slots + 1) % latents.shape[1])  # type: ignore


def added_instead(model: HookedLatentTransformer) -> None:
    model.config = replace(model.config, latent_update="add")


def position_kept(model: HookedLatentTransformer) -> None:
    model.config = replace(model.config, strip_position=False)


def write_kept_short(model: HookedLatentTransformer) -> None:
    write = model.write
    model.write = lambda latents, update, slots: write(latents, 0.999 * update, slots)  # type: ignore[method-assign]


def scores_scaled(model: HookedLatentTransformer) -> None:
    for block in model.blocks:
        block.attn.scale = block.attn.scale * 1.01


def all_seeing(model: HookedLatentTransformer) -> None:
    for block in model.blocks:
        block.attn.mask.zero_()


def one_ahead(model: HookedLatentTransformer) -> None:
    model.blocks[-1].attn.mask.copy_(torch.ones_like(model.blocks[-1].attn.mask).triu(2))


def biased(model: HookedLatentTransformer) -> None:
    model.blocks[0].attn.b_O[-1] += 1e-6


def biased_output(model: HookedLatentTransformer) -> None:
    model.unembed.bias[-1] += 1e-6


def junk_in_the_update(model: HookedLatentTransformer) -> None:
    update = model.update
    junk = 1e-6 * torch.eye(model.config.d_model, dtype=torch.float64)[-1]
    model.update = lambda read, n_positions: update(read, n_positions) + junk  # type: ignore[method-assign]


def position_of_another(model: HookedLatentTransformer) -> None:
    model.pos_embed.table[-1] = model.pos_embed.table[-2]


MODEL_FAULTS = (
    slot_of_the_next,
    added_instead,
    position_kept,
    write_kept_short,
    scores_scaled,
    all_seeing,
    one_ahead,
    biased,
    biased_output,
    junk_in_the_update,
    position_of_another,
)


@cache
def faults_of(machine: str) -> dict[str, Fault]:
    """Every fault of a machine, by name."""
    circuit, _ = built(machine)
    faults: dict[str, Fault] = {}
    for head in circuit.heads:
        for kind in HEAD_FAULTS:
            faults[f"{head.name}: {kind.__name__}"] = change_head(head.name, kind)
        # Scores of heads 3.2 and 2.2 are locations: those heads stay, and move nothing.
        faults[f"{head.name}: removed"] = change_head(head.name, silent)
        if _is_offset(head):
            faults[f"{head.name}: one_later"] = change_head(head.name, one_later)
    faults |= neuron_faults(circuit) | tables(circuit)
    for variable in circuit.algorithm.variables:
        if variable.equation is not None:
            faults[f"equation of {variable.key}"] = change_equation(variable.key)
    faults |= {f"model: {kind.__name__}": partial(broken, kind) for kind in MODEL_FAULTS}
    return faults


def _is_offset(head: Head) -> bool:
    return sum(all(axis[0] == "pos" for axis in key.coefficients) for _, key in head.scores) > 2


def survivors(machine: str, names: list[str]) -> set[str]:
    return {name for name in names if passes(machine, faults_of(machine)[name])}


def listed(machine: str) -> dict[str, str]:
    return SURVIVORS[machine] | EVERYWHERE


@pytest.mark.parametrize("machine", MACHINES)
def test_verification_catches_a_sample_of_the_faults(machine: str) -> None:
    """Every sixteenth fault, and every fault of the model of the first machine."""
    names = [name for i, name in enumerate(faults_of(machine)) if i % 16 == 3]
    if machine == "R":
        names = list(dict.fromkeys([*names, *(f"model: {kind.__name__}" for kind in MODEL_FAULTS)]))
    assert passes(machine)
    assert survivors(machine, names) == set(names) & set(listed(machine))


@pytest.mark.slow(reason="250 faults, two minutes")
@pytest.mark.parametrize("machine", MACHINES)
def test_verification_catches_every_fault_but_those_listed(machine: str) -> None:
    names = list(faults_of(machine))
    assert survivors(machine, names) == set(listed(machine))


def test_there_are_many_faults_and_all_survivors_are_among_them() -> None:
    assert sum(len(faults_of(machine)) - len(listed(machine)) for machine in MACHINES) >= 200
    assert all(set(listed(machine)) <= set(faults_of(machine)) for machine in MACHINES)
