"""Single faults of a handwired machine, by name: one thing changed in its circuit, in the algorithm or in the model."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from circuits.basis import Direction
from circuits.circuit import Circuit
from circuits.compiler import compile_circuit
from circuits.heads import Head, Neuron
from interp.core.algorithm import Variable
from interp.model.transformer import HookedLatentTransformer

Made = Circuit | HookedLatentTransformer
Fault = Callable[[Circuit], Made]

OTHER_RULE = {"hard": "softmax", "softmax": "hard", "linear": "softmax"}


def edit_head(circuit: Circuit, name: str, **changes: Any) -> Circuit:
    """Return a copy of a circuit in which fields of one head are replaced; ``edits`` lists the change."""
    old = circuit.head(name)
    heads = tuple(replace(head, **changes) if head is old else head for head in circuit.heads)
    edit = f"{old.name}: {', '.join(sorted(changes))}"
    return replace(circuit, heads=heads, edits=(*circuit.edits, edit))


def faults(circuit: Circuit) -> dict[str, Fault]:
    """Every fault of a machine: what takes its circuit and gives it back, or its model, with one thing changed."""
    named: dict[str, Fault] = {}
    for head in circuit.heads:
        for kind in HEAD_FAULTS:
            named[f"{head.name}: {kind.__name__}"] = change_head(head.name, kind)
        # Scores of heads 3.2 and 2.2 are locations: those heads stay, and move nothing.
        named[f"{head.name}: removed"] = change_head(head.name, silent)
        keys_of_positions = [key for _, key in head.scores if is_of_positions(key)]
        if len(keys_of_positions) > 2:  # an offset
            named[f"{head.name}: one_later"] = change_head(head.name, one_later)
    named |= neuron_faults(circuit) | tables(circuit)
    for variable in circuit.algorithm.variables:
        if variable.equation is not None:
            named[f"equation of {variable.key}"] = change_equation(variable.key)
    return named | {f"model: {kind.__name__}": partial(broken, kind) for kind in MODEL_FAULTS}


def is_of_positions(key: Direction) -> bool:
    return all(block == "pos" for block, *_ in key.coefficients)


# Faults of the circuit.


def change_head(name: str, changed: Callable[[Head], Head]) -> Fault:
    def fault(circuit: Circuit) -> Circuit:
        heads = [changed(head) if head.name == name else head for head in circuit.heads]
        return replace(circuit, heads=tuple(heads))

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
    terms = [(q, k) for q, k in head.scores if len(k.coefficients) == 1 and is_of_positions(k)]
    others = [term for term in head.scores if term not in terms]
    queries = [q for q, _ in terms][:-1]
    keys = [k for _, k in terms][1:]
    shifted_terms = zip(queries, keys, strict=True)
    return replace(head, scores=(*shifted_terms, *others))


HEAD_FAULTS = (scaled_value, negated_score, without_sink, without_value, other_rule)


def change_neuron(index: int, changed: Callable[[Neuron], Neuron]) -> Fault:
    def fault(circuit: Circuit) -> Circuit:
        neurons = list(circuit.neurons)
        neurons[index] = changed(neurons[index])
        return replace(circuit, neurons=tuple(neurons))

    return fault


def neuron_faults(circuit: Circuit) -> dict[str, Fault]:
    faults: dict[str, Fault] = {}
    names = [neuron.name for neuron in circuit.neurons]
    for name in dict.fromkeys(names):
        first = names.index(name)
        faults[f"{name}: bias"] = change_neuron(first, biased_neuron)
        faults[f"{name}: written"] = change_neuron(first, scaled_neuron)
        faults[f"{name}: one removed"] = change_neuron(first, silent_neuron)
    return faults


def biased_neuron(neuron: Neuron) -> Neuron:
    return replace(neuron, bias=neuron.bias + 0.1)


def scaled_neuron(neuron: Neuron) -> Neuron:
    return replace(neuron, write=1.01 * neuron.write)


def silent_neuron(neuron: Neuron) -> Neuron:
    return replace(neuron, write=0.0 * neuron.write)


def tables(circuit: Circuit) -> dict[str, Fault]:
    """Faults of embeddings, payloads, latents and outcomes."""
    first, second = circuit.layout.outcomes[:2]
    names, latents = list(circuit.tokens), circuit.latents
    third_block, labels = circuit.basis.blocks[2]
    stray = circuit.basis[third_block][labels[0]]
    outcome = circuit.layout.outcomes[0]
    faults: dict[str, Fault] = {}
    faults["two outcomes exchanged in the embedding"] = lambda c: replace(
        c, tokens={**c.tokens, first: c.tokens[second], second: c.tokens[first]}
    )
    faults["an outcome embedded too long"] = lambda c: replace(
        c, tokens={**c.tokens, outcome: 1.01 * c.tokens[outcome]}
    )
    faults["the first token embedded as the last"] = lambda c: replace(
        c, tokens={**c.tokens, names[0]: c.tokens[names[-1]]}
    )
    faults["an initial latent that is not empty"] = lambda c: replace(
        c, latents=(latents[0] + 0.01 * c.state[0], *latents[1:])
    )
    faults["outcomes exchanged"] = lambda c: replace(
        c, outcomes=(c.outcomes[1], c.outcomes[0], *c.outcomes[2:])
    )
    faults["an outcome read too long"] = lambda c: replace(
        c, outcomes=(*c.outcomes[:-1], 1.01 * c.outcomes[-1])
    )
    faults["the state read too long"] = lambda c: replace(
        c, state=(1.01 * c.state[0], *c.state[1:])
    )
    faults["two axes of the state exchanged"] = lambda c: replace(
        c, state=(c.state[1], c.state[0], *c.state[2:])
    )
    faults["a stray axis in an outcome"] = lambda c: replace(
        c, outcomes=(*c.outcomes[:-1], c.outcomes[-1] + stray)
    )
    if circuit.payloads:
        faults["a payload too large"] = lambda c: replace(
            c, payloads={k: 1.01 * d for k, d in c.payloads.items()}
        )
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

        changed_algorithm = replace(
            circuit.algorithm, variables=tuple(map(changed, circuit.algorithm.variables))
        )
        return replace(circuit, algorithm=changed_algorithm)

    return fault


# Faults of the model.


def broken(
    damage: Callable[[HookedLatentTransformer], None], circuit: Circuit
) -> HookedLatentTransformer:
    model = compile_circuit(circuit)
    with torch.no_grad():
        damage(model)
    return model


def slot_of_the_next(model: HookedLatentTransformer) -> None:
    write = model.write

    def write_to_next(latents: torch.Tensor, update: torch.Tensor, slots: torch.Tensor) -> Any:
        n_slots = latents.shape[1]
        return write(latents, update, (slots + 1) % n_slots)

    model.write = write_to_next  # type: ignore[method-assign]


def added_instead(model: HookedLatentTransformer) -> None:
    model.latent_kept = 1.0


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
    mask = model.blocks[-1].attn.mask
    mask.copy_(torch.ones_like(mask).triu(2))


def biased(model: HookedLatentTransformer) -> None:
    model.blocks[0].attn.b_O[-1] += 1e-6


def biased_output(model: HookedLatentTransformer) -> None:
    model.unembed.bias[-1] += 1e-6


def junk_in_the_update(model: HookedLatentTransformer) -> None:
    update = model.update
    junk = torch.zeros(model.config.d_model, dtype=torch.float64)
    junk[-1] = 1e-6
    model.update = lambda read, n_positions: update(read, n_positions) + junk  # type: ignore[method-assign]


def position_of_another(model: HookedLatentTransformer) -> None:
    table = model.pos_embed.table
    table[-1] = table[-2]


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
