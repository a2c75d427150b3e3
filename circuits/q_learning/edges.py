"""Which head of the Q-learning circuit reads what another one wrote, in each variant."""

from __future__ import annotations

from circuits.circuit import Edge


def edges(variant: str, split: bool) -> tuple[Edge, ...]:
    """Which head feeds which; ``split`` where linear heads became pairs."""
    fetched = "2.1 Select fetches s_t"
    choose, maximum, inherit = "3.1 action selection", "3.2 max extraction", "3.3 Update inheritance"
    column, phase, candidate = "1.6 context fetch", "1.4 current-phase tag", "1.5 next-phase tag"
    joined = [
        Edge(phase, fetched, "key", "which action was taken"),
        Edge("1.1 state to actions", fetched, "value", "s_t"),
        Edge(phase, inherit, "key", "which action was taken"),
        Edge(column, inherit, "value", "Q(., a_t)"),
        Edge(candidate, choose, "key", "who is a candidate"),
        Edge(candidate, maximum, "key", "who is a candidate"),
        Edge(choose, "prediction", "residual", "the choice"),
        Edge(inherit, "update", "residual", "the column to change"),
    ]
    if variant == "lin":
        values, following = "2.2 Q-values", "2.3 next state to Update"
        current, reward, bootstrap = "4.1 subtract current value", "4.2 add reward", "4.3 add discounted max"
        joined += [
            Edge("1.2 state to Select", values, "query", "s_{t+1}"),
            Edge("1.3 state to reward", values, "query", "s_t"),
            Edge("1.2 state to Select", following, "value", "s_{t+1}"),
            Edge(values, choose, "query", "Q(s_{t+1}, .)"),
            Edge(values, maximum, "query", "Q(s_{t+1}, .)"),
            Edge(column, maximum, "value", "Q(., a*)"),
            Edge(inherit, current, "query", "a_t"),
            Edge(values, current, "key", "Q(s_t, .)"),
            Edge("1.3 state to reward", current, "value", "s_t"),
            Edge("1.3 state to reward", reward, "value", "s_t"),
            Edge(following, bootstrap, "query", "s_{t+1}"),
            Edge(maximum, bootstrap, "key", "Q(., a*)"),
            Edge(fetched, bootstrap, "value", "s_t"),
            *(Edge(head, "update", "residual", "a TD term") for head in (current, reward, bootstrap)),
        ]
    elif variant == "mlp":
        values = "2.2 Q-values"
        current, reward, bootstrap = "4.1 subtract current value", "4.2 add reward", "4.3 add discounted max"
        joined += [
            *_evaluation(values, column, phase, candidate, choose, maximum),
            Edge(values, current, "key", "-Q(s_t, a_t)"),
            Edge("1.1 state to actions", current, "value", "s_t"),
            Edge("1.3 state to reward", reward, "value", "s_t"),
            Edge(maximum, bootstrap, "key", "max_a Q(s_{t+1}, a)"),
            Edge(fetched, bootstrap, "value", "s_t"),
            *(Edge(head, "update", "residual", "a TD term") for head in (current, reward, bootstrap)),
        ]
    else:
        values, add, clear = "2.2 Q-values", "4.4 add TD error", "4.5 clean up"
        fetches = ("4.1 fetch current value", "4.2 fetch reward", "4.3 fetch max")
        joined += [
            *_evaluation(values, column, phase, candidate, choose, maximum),
            Edge(phase, fetches[0], "key", "which action was taken"),
            Edge(values, fetches[0], "value", "-Q(s_t, a_t)"),
            Edge("1.1 state to actions", fetches[0], "value", "s_t"),
            Edge(maximum, fetches[2], "value", "max_a Q(s_{t+1}, a)"),
            *(Edge(fetch, add, "residual", "a term of the TD error") for fetch in fetches),
            *(Edge(fetch, clear, "residual", "what to remove") for fetch in fetches),
            Edge(add, "update", "residual", "alpha x TD error"),
            Edge(clear, "update", "residual", "minus everything else"),
        ]
    return tuple(part for edge in joined for part in (_halves(edge, variant) if split else (edge,)))


def _evaluation(values: str, column: str, phase: str, candidate: str, choose: str, maximum: str) -> tuple[Edge, ...]:
    return (
        Edge("1.1 state to actions", values, "residual", "the state"),
        Edge(column, values, "residual", "the column"),
        Edge(phase, values, "residual", "phase Qcurr"),
        Edge(candidate, values, "residual", "phase Qnext"),
        Edge(values, choose, "key", "Q(s_{t+1}, a)"),
        Edge(values, maximum, "key", "Q(s_{t+1}, a)"),
        Edge(values, maximum, "value", "Q(s_{t+1}, a)"),
    )


_LINEAR = {
    "mlp": ("4.1", "4.2", "4.3"),
    "softmlp": (),
    "lin": ("2.2", "4.1", "4.2", "4.3"),
}


def _halves(edge: Edge, variant: str) -> list[Edge]:
    """An edge between heads that became pairs, once for each half."""

    def names(name: str) -> list[str]:
        number, _, word = name.partition(" ")
        return [f"{number}{mark} {word}" for mark in "+-"] if number in _LINEAR[variant] else [name]

    return [Edge(s, t, edge.port, edge.carries) for s in names(edge.source) for t in names(edge.target)]
