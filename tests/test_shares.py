"""Work that several commands divide: shares give the bytes of one command, and other settings are refused by name."""

import json
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

import interp
from interp.cli import options
from interp.evaluation import suite
from interp.evaluation.experts import by_regime
from interp.model.checkpoints import save_checkpoint
from interp.support import shares
from interp.support.workers import share
from tests.refusals import refuses
from tests.shell import answer, invoked, printed, refusal
from tests.test_signals import PROGRAM, start

FILES = {"a": "a.csv", "b": "b.csv", "c": "c.csv"}


@pytest.mark.parametrize(
    ("variables", "shard", "items"),
    [
        ({"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "3"}, "auto", "be"),
        ({"SGE_TASK_ID": "1", "SGE_TASK_LAST": "2"}, "auto", "aceg"),
        ({"PBS_ARRAY_INDEX": "3"}, "auto/3", "cf"),
        # One job of an array that is queued again by itself is still of as many.
        ({"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "1"}, "auto/3", "be"),
    ],
    ids=["slurm", "sge", "pbs", "slurm again"],
)
def test_the_share_of_a_job_is_what_its_queue_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], shard: str, items: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert share("abcdefg", shard) == items


def test_no_array_and_an_array_of_unknown_size_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses("none of SLURM_ARRAY_TASK_ID", share, "ab", "auto")
    monkeypatch.setenv("PBS_ARRAY_INDEX", "1")
    refuses("of how many jobs; give --shard auto/N", share, "ab", "auto")
    monkeypatch.setenv("SGE_TASK_ID", "0")
    refuses("I counts from 1 to N", share, "ab", "auto/2")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"settings": {"seed": 1}}, "made with seed=0, and this command has seed=1"),
        ({"files": {**FILES, "d": "d.csv"}}, "made with d=None, and this command has d='d.csv'"),
    ],
)
def test_shares_of_other_work_are_refused_by_name(
    tmp_path: Path, change: dict[str, dict[str, str]], sentence: str
) -> None:
    work = {"files": FILES, "settings": {"seed": 0}}
    shares.divide(tmp_path, **work, shard="1/2")
    refuses(sentence, shares.divide, tmp_path, **{**work, **change}, shard="2/2")
    refuses(sentence, shares.divide, tmp_path, **{**work, **change})
    shares.end_division(tmp_path)
    shares.divide(tmp_path, **{**work, **change})


def test_shares_of_another_version_are_refused_by_its_name(tmp_path: Path) -> None:
    shares.divide(tmp_path, FILES, {}, "1/2")
    place = tmp_path / shares.WORK_FILE
    work = json.loads(place.read_text())
    work["versions"]["torch"] = "0.1"
    place.write_text(json.dumps(work))
    refuses("were made with torch='0.1'", shares.divide, tmp_path, FILES, {}, "2/2")


def test_shares_of_a_table_or_a_checkpoint_that_changed_are_refused(tmp_path: Path) -> None:
    """Words that are no paths have no content, and models that come with a name are not looked up as folders."""
    table, folder = tmp_path / "people.csv", tmp_path / "model"
    folder.mkdir()
    table.write_text("choice\n0\n")
    (folder / "weights").write_text("1")
    words = [str(table), str(folder), "wma-gru", "choice=key"]
    before = options.digest_files(words)
    assert set(before) == {f"the content of {table}", f"the content of {folder}"}
    (folder / "weights").write_text("2")
    after = options.digest_files(words)
    out = tmp_path / "out"
    shares.divide(out, FILES, before, "1/2")
    refuses(f"were made with the content of {folder}=", shares.divide, out, FILES, after, "2/2")


def test_the_digest_of_a_folder_depends_on_the_names_of_its_files(tmp_path: Path) -> None:
    """A command reads the files of a folder by name."""
    weights = tmp_path / "weights"
    weights.write_text("1")
    before = options.digest_files([str(tmp_path)])
    assert options.digest_files([str(tmp_path)]) == before
    weights.rename(tmp_path / "other")
    assert options.digest_files([str(tmp_path)]) != before


NONE_OF_A_FEW = ["--shard", "99/99"]
"""A share without a part: the command only writes what the parts depend on, or refuses what differs."""


def test_shares_of_causal_tables_that_are_held_against_another_algorithm_are_refused(
    tmp_path: Path,
) -> None:
    command = ["patch", "wma-handwired", "--experts", 2, "--episodes", 4, "--round", 2, "--tables"]
    command += ["--out", tmp_path, *NONE_OF_A_FEW]
    printed(*command)
    refused = refusal(*command, "--hypothesis", "weighted_majority", "gain=0.5")
    assert "were made with hypothesis=None" in refused


def test_shares_of_scores_beside_a_checkpoint_that_changed_are_refused(tmp_path: Path) -> None:
    """A network that is trained again in the same folder is another one."""
    traces, model = tmp_path / "traces", tmp_path / "model"
    few = ["--episodes", 1, "--rounds", 2, "--regime", "flat", "--conditions", "online-no-note"]
    printed("llm", "run", "--agent", "counter", *few, "--out", traces)
    command = ["llm", "score", traces, "--models", model, "--out", tmp_path / "out", *NONE_OF_A_FEW]
    save_checkpoint(interp.load("wma-gru"), model)
    printed(*command)
    shutil.rmtree(model)
    save_checkpoint(interp.load("wma-gru").untrained(0), model)
    assert f"were made with the content of {model}" in refusal(*command)


def test_a_status_tells_done_from_partial_and_absent(tmp_path: Path) -> None:
    files = {"first": "first/model", "second": "second/model", "third": "third/model"}
    shares.divide(tmp_path, files, {}, "1/1")
    with shares.marked_as_running(tmp_path, "first"):
        (tmp_path / "first" / "model").mkdir(parents=True)
    (tmp_path / "second").mkdir()
    table = shares.status(tmp_path)
    assert table["state"].tolist() == ["done", "partial", "absent"]
    assert table["seconds"].notna().tolist() == [True, False, False]
    status = answer("status", tmp_path)
    assert [part["state"] for part in status["parts"]] == table["state"].tolist()
    assert shares.divide(tmp_path, files, {}, shares.PLAN) == ["second"]
    assert list(shares.iterate_undone(tmp_path, files, {})) == ["second", "third"]


def test_a_result_from_before_the_work_was_divided_is_made_again(tmp_path: Path) -> None:
    """It may be of other settings, such as another seed."""
    result = tmp_path / "first" / "audit.json"
    result.parent.mkdir()
    result.write_text("of seed 0")
    work = {"folder": tmp_path, "files": {"first": "first/audit.json"}, "settings": {"seed": 1}}
    assert next(shares.iterate_undone(**work, shard="1/1")) == "first"
    assert shares.divide(**work, shard=shares.PLAN) == ["first"]
    assert shares.status(tmp_path)["state"].tolist() == ["partial"]
    assert list(shares.iterate_undone(**work, shard="1/1")) == ["first"]
    assert shares.status(tmp_path)["state"].tolist() == ["done"]
    assert list(shares.iterate_undone(**work, shard="1/1")) == []


@pytest.mark.long
def test_a_command_says_how_much_is_done_where_its_work_was_divided(tmp_path: Path) -> None:
    """Of work that was never divided it says nothing, and ends well."""
    command = ["audit", "wma-gru", "--quick", "--out", tmp_path]
    assert "parts are in" not in printed(*command)
    assert "1/1: 1 of 1 parts are in" in printed(*command, "--shard", "1/1")
    assert "1 of 1 parts are in" in printed(*command)
    assert not (tmp_path / shares.WORK_FILE).exists()


@pytest.mark.long
def test_three_shares_of_an_evaluation_give_the_bytes_of_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One share is made twice, as by a job that was killed and queued again; nothing is measured again at the end."""
    monkeypatch.setattr(by_regime, "fitting_regimes", lambda model: ["uniform"])
    monkeypatch.setattr(by_regime, "over_lengths", partial(by_regime.over_lengths, n_rounds=30))
    model = interp.load("wma-handwired", n_experts=2)
    alone = suite.evaluate(model, n_episodes=30, seed=1)
    parts = tmp_path / "parts"
    for shard in ("1/3", "2/3", "2/3", "3/3"):
        assert suite.evaluate(model, n_episodes=30, seed=1, folder=parts, shard=shard) is None
    assert set(shares.status(parts)["state"]) == {"done"}
    monkeypatch.setattr(suite, "plan_of", lambda model: _refuse_to_measure(suite_plan(model)))
    together = suite.evaluate(model, n_episodes=30, seed=1, folder=parts)
    written = [result.write(tmp_path / str(i)) for i, result in enumerate((alone, together))]
    assert [p.read_bytes() for p in written[0]] == [p.read_bytes() for p in written[1]]
    refuses("a share is kept in a folder", suite.evaluate, model, n_episodes=30, shard="1/2")


suite_plan = suite.plan_of


def _refuse_to_measure(plan: suite.EvaluationPlan) -> suite.EvaluationPlan:
    def measure(*arguments: object) -> None:
        raise AssertionError("a part was measured again")

    object.__setattr__(plan, "measure", measure)
    return plan


@pytest.mark.long
def test_a_time_limit_ends_a_command_as_a_queue_does(tmp_path: Path) -> None:
    """Within two seconds it has not begun to train: what it does then is as after SIGTERM (tests/test_signals.py)."""
    process = start([*PROGRAM, "train", "experts", "--out", str(tmp_path), "--time-limit", "2s"])
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped; the same command goes on where finished work was kept" in errors


def test_a_time_limit_is_a_number_and_a_unit(tmp_path: Path) -> None:
    assert (
        "90s, 20m or 3h, got 'soon'" in invoked("status", tmp_path, "--time-limit", "soon").stderr
    )
