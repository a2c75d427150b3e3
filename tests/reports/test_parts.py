"""A report is a list of parts: what each is given, what becomes of one that fails, and what any task's report holds."""

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import interp
from circuits.compiler import list_wired_claims
from interp import tasks
from interp.results.measure import Control, Measure
from interp.stats.intervals import Interval
from interp.support.files import json_values
from interp.tasks import Task
from reports import build as builder
from reports.blocks import Prose
from reports.build import write
from reports.page import Section
from reports.part import Context, Part
from reports.parts import overview
from reports.tasks import default_parts, experts, parts_for
from tests.refusals import refuses
from tests.reports.conftest import SMALL, tiny
from tests.reports.test_build import section, titles
from tests.shell import answer, invoked
from tests.test_json import SCHEMA, check


def part(key: str, compute: Callable[[Context], Any] = lambda context: None, **others: Any) -> Part:
    """A part whose section says what was computed."""
    title = key.capitalize()
    return Part(
        key,
        title,
        compute,
        lambda computed, context: Section(title, [Prose(str(computed))]),
        **others,
    )


def refuse(context: Context) -> None:
    raise interp.InputError("there are <2> reasons")


def divide(context: Context) -> float:
    return 1 / 0


@pytest.fixture
def model() -> Any:
    return interp.load("wma-handwired", n_experts=2)


def test_a_part_that_fails_leaves_a_box_and_takes_no_other_with_it(
    model: Any, tmp_path: Path
) -> None:
    """The page holds everything else, and says why of what is missing: at its place and in the summary."""
    claim = Measure("a", "A claim", Interval(0.9, 0.8, 1), 0.5, controls={"chance": Control(0.9)})
    drawn = part("drawn", summary=lambda computed, context: [claim])
    undrawn = replace(part("undrawn"), draw=lambda computed, context: divide(context))
    parts = (overview.part(), part("refused", refuse), part("broken", divide), undrawn, drawn)
    with pytest.warns(
        UserWarning,
        match=r"Refused, because there are <2> reasons; Broken, because ZeroDivisionError",
    ):
        html = write(model, tmp_path, **SMALL, parts=parts).path.read_text("utf-8")
    assert titles(html)[:-1] == ["What was found", "Refused", "Broken", "Undrawn", "Drawn"]
    assert "Not computed, because there are &lt;2&gt; reasons</p>" in section(html, "Refused")
    for title in ("Broken", "Undrawn"):
        assert "Not computed, because ZeroDivisionError: division by zero</p>" in section(
            html, title
        )
        assert "in divide" in section(html, title)
    assert 'class="missing"' not in section(html, "Drawn")
    row = r'<th scope="row">([^<]*) <a class="see" href="#(.*?)"(.*?)badge (.*?)">(.*?)<(.*?)</tr>'
    why = r'class="(?:said|muted)">([^<]+)<'  # beside the word, or where the number would stand
    cut = [
        (*row_html[:2], *row_html[3:5], *re.findall(why, row_html[2] + row_html[5]))
        for row_html in re.findall(row, html, re.DOTALL)
    ]
    zero = "not computed, because ZeroDivisionError: division by zero"
    whys = {
        "Refused": "not computed, because there are &lt;2&gt; reasons",
        "Broken": zero,
        "Undrawn": zero,
    }
    expected = [
        (title, title.lower(), "neutral", "undecided", claim) for title, claim in whys.items()
    ]
    reason = "chance comes too near (less than 3 times its odds)"
    assert cut == [*expected, ("A claim", "drawn", "neutral", "undecided", reason)]


@pytest.mark.filterwarnings("always:parts of .* were not computed")
def test_the_command_exits_with_1_and_prints_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A script notices; a reader still gets the page."""
    monkeypatch.setattr(experts, "parts", lambda: (overview.part(), part("broken", divide)))
    ran = invoked("report", "wma-handwired", "--episodes", "5", "--rounds", "10", "--out", tmp_path)
    assert ran.exit_code == 1
    assert ran.stdout.strip() == str(tmp_path / "wma-handwired.html")
    assert (tmp_path / "wma-handwired.html").is_file()
    assert "not computed: Broken, because ZeroDivisionError" in ran.stderr


def test_the_json_is_the_measures_of_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a script reads is what a reader sees; the page's first sentence is that of the first part with one."""
    claim = Measure("a", "A claim", Interval(0.9, 0.8, 1), 0.5, controls={"chance": Control(0.1)})
    exact = part("exact", summary=lambda *_: [claim], sentence=lambda *_: "It is exact.")
    monkeypatch.setattr(experts, "parts", lambda: (overview.part(), exact))
    words = [
        "report",
        "wma-handwired",
        "--episodes",
        "5",
        "--rounds",
        "10",
        "--out",
        tmp_path,
    ]
    printed = answer(*words)
    check(printed, SCHEMA["$defs"]["report"])
    assert printed["measures"] == [json_values(claim.to_dict())]
    assert printed["not_computed"] == {}
    assert '<p class="sentence">It is exact.</p>' in (tmp_path / "wma-handwired.html").read_text(
        "utf-8"
    )


def test_parts_share_results_and_failures(model: Any, tmp_path: Path) -> None:
    """A part may read the result of any other, computed once; what needs a failed part fails for its reason."""
    computed = []

    def compute_once(context: Any) -> str:
        computed.append("late")
        return "once"

    parts = (
        part("early", lambda context: f"early saw {context.result('late')}"),
        part("late", compute_once),
        part("broken", divide),
        part("needy", lambda context: context.result("broken")),
        part("lost", lambda context: context.result("erly")),
    )
    with pytest.warns(UserWarning, match="Broken.*Needy.*Lost"):
        html = write(model, tmp_path, **SMALL, parts=parts).path.read_text("utf-8")
    assert computed == ["late"]
    assert "early saw once" in section(html, "Early")
    assert "ZeroDivisionError" in section(html, "Needy")
    assert "unknown part of this report &#39;erly&#39;; did you mean &#39;early&#39;" in section(
        html, "Lost"
    )


def test_a_report_hashes_a_model_once(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever parts ask for the digest of its weights: they share one session."""
    hashed: list[Any] = []
    describe = type(model).describe_for_digest
    monkeypatch.setattr(
        type(model), "describe_for_digest", lambda self: hashed.append(self) or describe(self)
    )
    asks = [part(key, lambda context: context.model.digest()) for key in ("one", "two")]
    write(model, tmp_path, **SMALL, parts=(overview.part(), *asks))
    assert hashed == [model]


def test_two_parts_of_one_key_are_refused(model: Any, tmp_path: Path) -> None:
    """One of them would read the other's result."""
    refuses("'twice'", write, model, tmp_path, **SMALL, parts=(part("twice"), part("twice")))
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_the_parts_that_apply(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar ends where the work does, and says how long the last part took."""
    seen: list[Any] = []

    @contextmanager
    def display(title: str, total: int, completed: int) -> Iterator[Callable[..., None]]:
        seen.append((total, completed))
        yield lambda **told: seen.append(told)

    monkeypatch.setattr(builder, "display", display)
    monkeypatch.setattr(builder, "perf_counter", iter((0.0, 1.5, 2.0, 2.25)).__next__)
    write(
        model,
        tmp_path,
        **SMALL,
        parts=(part("one"), part("two"), part("no", applies=lambda context: False)),
    )
    titles_shown = ("One", "Two (One: 1.5 s)", "drawing (Two: 0.2 s)")
    steps = [
        {"advance": 1, "text": f"Report on {model.config.name}: {what}"} for what in titles_shown
    ]
    assert seen == [(2, -1), *steps, {"completed": 2}]


@pytest.mark.long
def test_a_page_of_a_shipped_model_is_small(tmp_path: Path) -> None:
    """Attention is most of a page: that of the largest shipped model leaves a megabyte of 2.5 for the rest."""
    parts = [
        part
        for part in parts_for(tasks.get("reachability"))
        if part.key in ("summary", "attention")
    ]
    page = write(
        "reachability-learned", tmp_path, n_episodes=8, n_rounds=6, quick=True, parts=parts
    ).path
    assert page.stat().st_size < 1_500_000


def test_what_handwired_and_learned_models_get(model: Any) -> None:
    """Parts that need a circuit are a handwired model's alone."""
    learned = tiny(model.layout)
    keys = [
        {p.key for p in experts.parts() if p.applies(Context(subject, "", 8, 12, 0))}
        for subject in (model, learned)
    ]
    assert {"verification", "circuit"} <= keys[0] - keys[1]


@pytest.mark.parametrize(
    ("name", "variant"), [("wma-handwired", "P"), ("qlearning-handwired", "lin")]
)
def test_every_variant_of_a_circuit_has_rows_to_interchange(name: str, variant: str) -> None:
    """A variant that does not hold a variable loses the row, not the table."""
    variables = {
        claim.variable
        for claim in list_wired_claims(
            Context(interp.load(name, variant=variant), "", 8, 12, 0).circuit
        )
    }
    default = {
        claim.variable
        for claim in list_wired_claims(Context(interp.load(name), "", 8, 12, 0).circuit)
    }
    assert {"log_weights", "prediction"} <= variables or {"table", "choice", "change"} <= variables
    assert variables < default


@pytest.fixture
def own_task(registry: None) -> Any:
    """The module of the example's task, registered for one test."""
    return importlib.import_module("own_task")


def test_a_record_with_nothing_optional_gets_a_page(own_task: Any, tmp_path: Path) -> None:
    """A key, sizes, a layout, a sampler and a loss are enough for a report."""
    full = own_task.PULLS
    tasks.register(Task(full.key, full.name, full.what, full.data))
    html = write(tiny(own_task.PullRound()), tmp_path, **SMALL).path.read_text("utf-8")
    assert titles(html)[:-1] == [
        "What was found",
        "Attention",
        "How to reproduce",
    ]
    assert "interp report" not in section(html, "How to reproduce")


def test_a_task_that_lists_its_parts_gets_those(own_task: Any) -> None:
    """A record's own list is the whole report."""
    task_parts = (part("mine"),)
    assert (
        parts_for(replace(own_task.PULLS, report=tasks.Reporting(lambda: task_parts))) == task_parts
    )


def test_a_task_says_only_what_differs() -> None:
    """A part in the place of the default one, one after it; a key that no default part has is refused."""
    known = [part.key for part in default_parts()]
    mine = part("probes")
    listed = default_parts(replace=[mine], after={"probes": [part("more")]})
    expected = list(known)
    expected.insert(expected.index("probes") + 1, "more")
    assert [part_listed.key for part_listed in listed] == expected
    assert mine in listed
    for wrong in ({"replace": [part("prob")]}, {"after": {"prob": []}}):
        refuses(
            r"unknown part of every report 'prob'; did you mean 'probes'", default_parts, **wrong
        )
