"""Junk thrown at every public function that a walk over ``__all__`` finds: an InputError or a result comes out."""

import importlib
import inspect
import os
import random
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path

import jaxtyping
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import circuits
import interp
from interp.evaluation.suite import evaluate
from interp.interventions import causal_tables
from interp.stats.intervals import Interval, ratio_interval, resample_weights
from interp.support import checks
from interp.support.errors import InputError
from interp.support.session import Finished
from interp.support.workers import run_on_workers
from interp.tasks import reachability
from interp.training.config import TrainingConfig
from lab import tables
from reports.build import write
from tests import junk, junk_methods, junk_records, junk_shell
from tests.refusals import refuses
from tests.shell import invoked
from tests.test_architecture import MODULES
from tests.test_full_disk import SMALL
from tests.test_public_names import own

QUICK, FULL = 50, 5000
"""Calls of the default suite, and of the slow one: 30,000 with methods, records and the command line."""
METHODS = 3
"""Calls of methods for one of functions: they are quick."""


@pytest.fixture(autouse=True, scope="module")
def somewhere_else(tmp_path_factory):
    """Outside the tests, nothing checks shapes, and a path that is junk is written to."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("junk"))
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
    os.chdir(before)


def throw(n_calls, surface, day=None):
    """What other exceptions came out of so many calls: the same calls each time, or those of a ``day``."""
    names = list(surface)
    found = []
    moved = 0 if day is None else day.toordinal() * 1_000_003

    @settings(
        max_examples=n_calls,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[
            Phase.generate
        ],  # what raises here is no call but how calls are made: no use to shrink
        suppress_health_check=HealthCheck,
    )
    @given(st.sampled_from(names), st.integers(0, 2**32))
    def one(name, seed):
        arguments = junk.spoiled(surface[name], seed + moved)
        error = junk.outcome(name, surface[name], dict(arguments))
        if error is not None:
            found.append((name, repr(error)[:200], {k: repr(v)[:60] for k, v in arguments.items()}))

    one()
    return found


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_only_input_errors_or_results_come_out():
    assert len(junk.surface()) > 150
    assert throw(QUICK, junk.surface()) == []


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_only_input_errors_or_results_come_out_of_methods():
    """Of real objects of 40 classes; and what they know without arguments is known."""
    assert len(junk_methods.objects()) >= 40 and len(junk_methods.methods()) > 120
    assert throw(METHODS * QUICK, junk_methods.methods()) == []
    assert junk_methods.unreadable() == []


CHECKED_LATER = {"circuits.benchmark.question.Answer"}
"""What a method of others answers: its grading says what is wrong, and asks again once it is mended."""


@cache
def public_records():
    """Every public dataclass that has a field of some kind, by its full name."""
    records = {}
    for module in map(importlib.import_module, sorted(MODULES)):
        for name, record in own(module):
            types = [field.type for field in fields(record)] if is_dataclass(record) else []
            kinds = [checks.kind_of(kind, vars(module)) for kind in types]
            if not all(kind in checks.UNCHECKED for kind in kinds):
                records[f"{module.__name__}.{name}"] = record
    return records


def test_every_public_record_checks_itself():
    """A new one stands under ``@checked_fields``, or ``@checked_result`` if NaN may be in it."""
    unchecked = []
    for name in public_records().keys() - CHECKED_LATER:
        record = public_records()[name]
        junk_fields = {field.name: object() for field in fields(record) if field.init}
        try:
            record(**junk_fields)
            unchecked.append(name)
        except InputError:
            continue
        except Exception as error:
            unchecked.append(f"{name}: {error!r}")
    assert unchecked == []
    assert len(public_records()) > 190


def throw_records(n_calls, day=None):
    """What other exceptions came out of so many records with junk in them, of each kind in turn."""
    uses = junk_records.uses()
    found = []
    for i in range(n_calls):
        name = sorted(uses)[i % len(uses)]
        seed = f"{name} {i} {day or ''}"
        try:
            with junk.at_most(20):
                uses[name](random.Random(seed))
        except InputError:
            continue
        except Exception as error:
            found.append((seed, repr(error)[:200]))
    return found


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_only_input_errors_or_results_come_out_of_records():
    """Of tasks, algorithms, families, corruptions, circuits, methods, answers and pages; right ones pass."""
    assert throw_records(3 * QUICK) == []
    for use in junk_records.uses(as_they_are=True).values():
        use(random.Random(0))


@pytest.mark.slow(reason="5,000 records and what each is for: 2 CPU minutes")
@pytest.mark.filterwarnings("ignore")
def test_only_input_errors_or_results_come_out_of_thousands_of_records():
    assert throw_records(FULL, date.today()) == []


@pytest.mark.parametrize("name", ["summary", "sentence", "hero"])
def test_a_function_of_a_part_that_gives_junk_fails_its_part_alone(name):
    part = replace(junk_records.part_of_report(), **{name: lambda computed, context: np.ones(2)})
    model = junk.right()["model"]
    with pytest.warns(UserWarning, match="were not computed: Mine"):
        written = write(model, "out", n_episodes=8, n_rounds=10, parts=(part,))
    assert f"the {name} of" in written.failures["Mine"]


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """A folder to work in with something of every kind, and a table that is small."""
    monkeypatch.chdir(junk_shell.furnish(tmp_path))
    monkeypatch.setitem(tables.TABLES, "small", SMALL)
    import interp.model.transformer  # noqa: F401, once, and not in every process


def throw_words(n_calls, day=None):
    """What was wrong with how so many commands ended, of each command in turn."""
    names, found = sorted(junk_shell.RIGHT), []
    for i in range(n_calls):
        seed = f"{names[i % len(names)]} {i} {day or ''}"
        words = junk_shell.spoiled(names[i % len(names)], random.Random(seed))
        if fault := junk_shell.fault(words):
            found.append((seed, words, fault))
    return found


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_command_is_refused_in_a_sentence_or_does_its_work(shell):
    assert set(junk_shell.RIGHT) == set(junk_shell.commands())
    assert throw_words(len(junk_shell.RIGHT)) == []


@pytest.mark.slow(reason="5,000 commands: 22 CPU minutes")
@pytest.mark.filterwarnings("ignore")
def test_thousands_of_commands_are_refused_in_a_sentence_or_do_their_work(shell):
    found = throw_words(FULL, date.today())
    assert not found, "\n".join(map(str, found))


THREE_ONES, ARRAY_OF_TEXT = np.ones(3), np.array(["a"])
JUNK_OF_FUNCTIONS = {
    "interp.choices.players.explain_each": ({"episodes": b"x", "choices": 0.5}, "episodes must be"),
    "interp.core.task.exchange_history": ({"episodes": [], "round": 1}, "episodes must be"),
    "interp.llm.runner.play_demo": ({"folder": "a\0b"}, "folder must be a path"),
    "interp.tasks.bandit.algorithms.choice_kernel": ({"rate": ARRAY_OF_TEXT}, "rate must be"),
    "interp.tasks.bandit.algorithms.fixed_bias": ({"first": np.zeros(0)}, "first is empty"),
    "circuits.compare.development.draw": (
        {"measures": pd.DataFrame({"a": [1.0]}), "algorithms": pd.DataFrame(), "shown": []},
        "measures needs the columns key",
    ),
    "interp.results.figures.draw_measures": ({"measures": ["x"]}, "measures must be"),
    "interp.results.measure.merge_copies": ({"values": [None]}, "values must be a number"),
    "reports.ledger.book.write": ({"ledger": [], "folder": "out"}, "ledger must be a Ledger"),
    "interp.core.catalog.using": ({"algorithm": 2.5}, "algorithm must be"),
    "interp.tasks.experts.episodes.ExpertEpisodes": (
        {"advice": [[[0]]], "labels": [[0]], "accuracies": [[1], [1, 0]]},
        "accuracies must be numbers in a rectangular array",
    ),
    "interp.training.trainer.train": (
        {
            "config": TrainingConfig("experts", [{"n_rounds": 2, "steps": 2}]),
            "folder": "a\0b",
            "name": "m",
        },
        "path must be a path",
    ),
    "circuits.compare.algorithm.AlgorithmPart": (
        dict.fromkeys(("closest", "runner_up", "baseline"), "bayes")
        | dict.fromkeys(("explained", "ratio"), Interval(0.5, 0.2, 0.8))
        | {"family": None, "parameters": {}, "scores": {}},
        "unknown family 'bayes'",
    ),
    "interp.interventions.alignment.AlignmentResult": (
        dict.fromkeys(("informative", "decided"), np.ones((2, 3), bool))
        | {key: {} for key in ("hits", "train_accuracy", "fits")}
        | {"variable": "log_weights", "site": "latent", "rank": 1},
        "hits need 'learned' and 'untrained model'",
    ),
    "probes.controls.ProbeScore": (
        dict.fromkeys(("estimate", "low", "high"), 0.5)
        | dict.fromkeys(("losses", "references"), THREE_ONES)
        | {"kind": "x"},
        "kind must be",
    ),
    "reports.panels.attention": (
        {"patterns": [np.ones((2, 3, 3))], "labels": ["a"] * 3, "heads": [["L0H0"]]},
        r"a name for each head of each layer, got \[2\] patterns and \[1\] names",
    ),
}
JUNK_OF_METHODS = {
    "Algorithm.step": ({"state": {}, "inputs": {}}, "it lacks '"),
    "AdaptedMachine.train": ({"mode": THREE_ONES}, "mode must be"),
    "CircuitScorer.run": ({"keeps": 2}, "keeps must be a list"),
    "AdaptedMachine.run_with_cache": ({}, "got nothing; give episodes"),
    "HookedLatentTransformer.run_with_hooks": ({"fwd_hooks": ["x"]}, "got nothing; give episodes"),
    "ProbeScore.of": ({"losses": np.ones(1), "references": ARRAY_OF_TEXT}, "references must be"),
    "Rollout.join": ({"runs": []}, "runs is empty"),
    "Interaction.episodes": ({}, "no round is played yet"),
    "Task.sets_for": (
        {"n_episodes": 2, "n_rounds": 2, "seed": 0, "n_arms": 2},
        "unknown size of 'qlearning' 'n_arms'",
    ),
}
"""Calls that once ended in an error of Python's or of torch's, and what they are told."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*JUNK_OF_FUNCTIONS, *JUNK_OF_METHODS])
def test_junk_that_once_raised_something_else_is_refused_by_name(name):
    arguments, words = {**JUNK_OF_FUNCTIONS, **JUNK_OF_METHODS}[name]
    refuses(words, {**junk.surface(), **junk_methods.methods()}[name], **arguments)


ABSURD = {
    "interp.stats.intervals.resample_weights": {"n_episodes": 2, "n_resamples": 10**12},
    "interp.interventions.steering.steer": {"n_random": 10**9},
    "circuits.benchmark.material.Workload": {"steps": 10**12},
    "circuits.compare.question.Budget": {"untrained": 10**9},
    "interp.tasks.reachability.sampling.sample": {"n_edges": 10**12},
    "interp.llm.plan.instances": {"n_instances": 10**5},
}


@pytest.mark.parametrize("name", ABSURD)
def test_counts_that_no_run_lives_to_finish_are_refused_with_an_estimate(name):
    function = {**junk.surface(), "interp.stats.intervals.resample_weights": resample_weights}[name]
    needed = [
        p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty
    ]
    known = {name: junk.right()[name] for name in needed if name in junk.right()}
    with (
        junk.at_most(2),
        pytest.raises(InputError, match=r"would take (at least .* hours|about .* GB)"),
    ):
        function(**known | ABSURD[name])


def test_what_users_call_is_checked_once_and_what_their_functions_call_is_checked_too(monkeypatch):
    """Calls within the toolkit are trusted: a small comparison made 52,000 checks, of which users needed ten."""
    names, check_type = [], checks.check_type
    monkeypatch.setattr(
        checks, "check_type", lambda name, *rest: names.append(name) or check_type(name, *rest)
    )
    ratio_interval(
        [1.0, 2.0], [2.0, 2.0], seed=np.int64(10)
    )  # it draws weights, and makes an Interval
    assert names == ["numerators", "denominators", "seed"]
    refuses(
        "n_episodes must be an integer, got 'x'",
        list,
        run_on_workers(lambda shared, item: resample_weights(item), None, ["x"]),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_only_input_errors_or_results_come_out_of_thousands_of_calls():
    """5,000 calls of functions and 15,000 of methods, other ones each day."""
    today = date.today()
    found = throw(FULL, junk.surface(), today) + throw(
        METHODS * FULL, junk_methods.methods(), today
    )
    assert not found, "\n".join(map(str, [today, *found]))


def test_a_container_and_a_shell_bound_memory(tmp_path):
    """Both versions of control groups, from the process's own group up; and the shell's ulimit."""
    mebi = 2.0**20
    for name, line, files, wanted in (
        (
            "2",
            "0::/a/b",
            {"a/b/memory.max": "max", "a/memory.max": "1048576", "memory.max": "9999999"},
            mebi,
        ),
        ("1", "4:cpu,memory:/a", {"memory/a/memory.limit_in_bytes": "2097152"}, 2 * mebi),
        ("other", "3:cpu:/a", {"memory/a/memory.limit_in_bytes": "1"}, float("inf")),
        ("within", "0::/../..", {"memory.max": "1048576"}, mebi),
    ):
        root = tmp_path / name
        for path, text in {"../../../proc/self/cgroup": line, **files}.items():
            place = Path(os.path.normpath(root / "sys/fs/cgroup" / path))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text + "\n")
        assert checks.container_bytes(str(root)) == wanted, name
    assert checks.container_bytes(str(tmp_path / "none")) == float("inf")
    code = "import sys; from interp.support.checks import *; refuse_beyond_machine('it', 5e9)"
    home = str(Path(__file__).parents[1])
    words = ["bash", "-c", f'ulimit -v 4000000; {sys.executable} -c "{code}"']
    ran = subprocess.run(
        words, capture_output=True, text=True, cwd=home, env={**os.environ, "PYTHONPATH": home}
    )
    assert "it would take about 5 GB, and the limit of this shell (ulimit) is 4.1 GB" in ran.stderr


UNBOUNDED = {
    "edges": lambda: reachability.sample(2, 3, 16, 10**6),
    "nodes": lambda: reachability.sample(64, 3, 2000, 4000),
    "a data set": lambda: TrainingConfig(
        "experts", [{"n_rounds": 2, "steps": 2}], dataset_episodes=10**10
    ),
    "rounds compared": lambda: replace(circuits.compare.Budget.quick(), rounds=10**6),
    "rounds verified": lambda: circuits.verify("wma-handwired", [(2,)], n_rounds=10**7),
    "rounds reported": lambda: write("wma-handwired", "out", n_rounds=10**5),
    "a map": lambda: causal_tables.patch(
        interp.load("wma-handwired", n_experts=2), 2, sample=causal_tables.Sample(n_map=10**5)
    ),
    "no workers": lambda: evaluate(interp.load("wma-handwired", n_experts=2), n_jobs=0),
    "seeds": lambda: run_command("benchmark", "--seeds", "100000000"),
    "a map of the shell": lambda: run_command("patch", "wma-handwired", "--map", "100000"),
}


def run_command(*arguments):
    done = invoked(*arguments)
    assert done.exit_code == 2 and not isinstance(done.exception, MemoryError), done.exception
    raise InputError(done.output)


@pytest.mark.parametrize("what", UNBOUNDED)
def test_what_would_take_hours_is_refused_at_once(what):
    interp.load("wma-handwired", n_experts=2)
    with junk.at_most(4), pytest.raises(InputError, match=r"would take|at most|number of workers"):
        UNBOUNDED[what]()


LATE = {
    "a file for a folder of parts": lambda path: Finished(path, {}),
    "a file above it": lambda path: Finished(path / "parts", {}),
    "a round that is none": lambda path: run_command(
        "patch", "nothing", "--round", "9", "--rounds", "5"
    ),
    "a reading before": lambda path: run_command("patch", "nothing", "--round", "9", "--read", "5"),
    "no direction": lambda path: run_command("patch", "nothing", "--direction", "up"),
    "no subject": lambda path: run_command("benchmark", "--subject", "nothing"),
    "a file for a report": lambda path: write("wma-handwired", path),
}


@pytest.mark.parametrize("what", LATE)
def test_what_can_be_refused_before_work_is(what, tmp_path):
    """A comparison was refused its folder after its first part, a round after the model was loaded."""
    (tmp_path / "file").write_text("x")
    with junk.at_most(8), pytest.raises(InputError) as refused:
        LATE[what](tmp_path / "file")
    assert "nothing" not in str(refused.value) or what == "no subject"
