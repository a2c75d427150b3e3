"""One question has one answer: the words of a claim agree in Python, in the shell and on a page, whatever their size.

Larger sizes decide what smaller ones leave undecided; none says "yes" where another says "no".
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import interp
import interp.tasks
import probes
from interp.results.measure import VERDICTS
from reports.tasks import parts_for
from tests.cases import cases
from tests.census import PACKAGES, sources
from tests.reports.conftest import fewer
from tests.shell import invoked

COMMANDS = cases(__file__, "one_answer COMMANDS")


@pytest.fixture
def less_than_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest sizes of what shares a claim with another surface: words agree at any.

    No other surface makes a claim of a comparison or of an audit: the slow test below asks these whether every missing
    answer has its reason.
    """
    page = [*COMMANDS["the quick page"], "--episodes", "16", "--rounds", "12"]
    monkeypatch.setitem(
        globals(), "COMMANDS", {"interp probe": COMMANDS["interp probe"], "the quick page": page}
    )
    decide = ("summary", "verification", "regret", "probes")
    parts = [part for part in parts_for(interp.tasks.get("experts")) if part.key in decide]
    monkeypatch.setattr("reports.tasks.experts.parts", lambda: parts)
    fewer(monkeypatch)


def answers(
    name: str, folder: Path, keys: tuple[str, ...] = (), n_experts: int | None = None
) -> dict[str, dict[str, tuple[str, str]]]:
    """Claim -> surface -> word and reason, of some variables (all that the task names when empty) at some size."""
    answers_by_surface: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    model = interp.load(name, **({"n_experts": n_experts} if n_experts else {}))
    n_rounds = interp.tasks.of(model).cap_rounds(12 if keys else 50)
    episodes = interp.tasks.of(model).sample_for(model, 32, n_rounds, 0)
    commands_asked = dict(COMMANDS)
    try:
        for result in probes.probe(model, episodes, keys or None):
            answers_by_surface[result.measure.claim]["probes.probe"] = (
                result.verdict,
                result.reason,
            )
    except interp.InputError as error:  # a state that is too large to be probed as a whole, a cache
        command, *options = commands_asked.pop("interp probe")
        assert str(error) in invoked(command, name, *options, "--out", folder).stderr
    for surface, (command, *options) in commands_asked.items():
        options += ["--experts", str(n_experts)] if n_experts else []
        options += ["--targets", *keys] if command == "probe" and keys else []
        done = invoked(command, name, *options, "--json", "--out", folder / command)
        assert done.exit_code in (0, 1), done.output
        for measure in json.loads(done.stdout)["measures"]:
            claim = measure["claim"]
            if command == "audit" and measure["about"]:
                claim = f"{claim} {measure['about']}"
            answers_by_surface[claim][surface] = (measure["verdict"], measure["reason"])
    return answers_by_surface


def disagreeing(
    found: dict[str, dict[str, tuple[str, str]]],
) -> dict[str, dict[str, tuple[str, str]]]:
    """The claims that are "yes" somewhere and "no" elsewhere, or whose missing answer has no reason."""
    wrong = {}
    for claim, surfaces in found.items():
        words = {word for word, _ in surfaces.values()}
        silent = any(
            word in ("undecided", "not applicable") and not reason
            for word, reason in surfaces.values()
        )
        if {"yes", "no"} <= words or silent or not words <= set(VERDICTS):
            wrong[claim] = surfaces
    return wrong


def test_disagreement_is_seen() -> None:
    spans = ("undecided", "the interval spans the threshold")
    assert (
        disagreeing(
            {"a": {"x": ("yes", ""), "y": spans}, "b": {"x": ("no", ""), "y": ("no", "by design")}}
        )
        == {}
    )
    assert set(
        disagreeing({"a": {"x": ("yes", ""), "y": ("no", "")}, "b": {"x": ("undecided", "")}})
    ) == {"a", "b"}


@pytest.mark.long
@pytest.mark.usefixtures("less_than_quick")
@pytest.mark.parametrize(
    ("name", "key", "n_experts"),
    [("wma-handwired", "log_weights_centred", 2), ("wma-tied", "label", None)],
)
def test_every_surface_gives_the_same_answer(
    name: str, key: str, n_experts: int | None, tmp_path: Path, changed_task: Callable[..., None]
) -> None:
    """Of a number, and of a class in another model; the other variables are asked for by the same functions."""
    changed_task("experts", analysis=replace(interp.tasks.get("experts").analysis, probed=(key,)))
    answers_by_surface = answers(name, tmp_path, (key,), n_experts)
    assert disagreeing(answers_by_surface) == {}
    shared = [claim for claim, surfaces in answers_by_surface.items() if len(surfaces) > 1]
    assert any("from the latents" in claim for claim in shared)


@pytest.mark.slow
@pytest.mark.parametrize("name", [record.name for record in interp.models()])
def test_every_surface_gives_the_same_answer_of_every_model_that_ships(
    name: str, tmp_path: Path
) -> None:
    """Slow: each model is probed, compared, audited and reported, a minute or more."""
    assert disagreeing(answers(name, tmp_path)) == {}


def test_what_judges_has_one_class_each() -> None:
    """A second class of one of these names would be a second rule, a second size, a second question."""
    texts = [path.read_text("utf-8") for path in sources(*PACKAGES)]
    classes = Counter(
        name for text in texts for name in re.findall(r"^ *class (\w+)", text, re.MULTILINE)
    )
    counted = {
        name: classes[name]
        for name in ("Measure", "Measured", "Verdict", "Budget", "Subject", "Question")
    }
    assert counted == {
        "Measure": 1,
        "Measured": 1,
        "Verdict": 0,
        "Budget": 2,  # of a comparison and of an audit, whose sizes differ
        "Subject": 0,
        "Question": 1,
    }
