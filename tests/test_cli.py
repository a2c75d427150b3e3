"""The command line: thin commands, one-sentence refusals with exit code 2, nothing half-written."""

import logging
import re
import shlex
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

import interp
from interp.cli import command as cli_command
from interp.cli import options
from interp.machines import learners  # noqa: F401 - its builders are registered once, before a row's own
from interp.model import checkpoints, library
from interp.support.files import read_rows
from tests.shell import answer, commands, invoked, printed, refusal


def test_models_lists_what_can_be_loaded():
    result = printed("models")
    experts, qlearning = (result.index(f"{key}: ") for key in ("experts", "qlearning"))
    assert experts < result.index("wma-handwired") < qlearning < result.index("qlearning-learned")


def test_help_on_training_names_every_task_and_its_presets():
    help_text = printed("train", "--help")
    assert "experts: laptop, laptop-replaced, laptop-wide, paper" in help_text
    assert "qlearning: laptop, laptop-replaced, paper" in help_text


def test_verify_prints_every_variable_and_takes_several_sizes():
    result = printed("verify", "wma-handwired", "--experts", 1, 3, "--rounds", 5, "--episodes", 2)
    assert "next log weights" in result
    assert "exactly: all" in result


def test_verify_exits_with_1_when_not_exact(monkeypatch):
    """At inverse temperature 10 the softmax-only circuit is far from exact."""
    from circuits import verification

    soft = partial(verification.verify, eta=10.0)
    monkeypatch.setattr(verification, "verify", soft)
    result = invoked("verify", "wma-handwired", "--experts", 3, "--rounds", 5, "--episodes", 2)
    assert result.exit_code == 1
    assert " is not " in result.output


REFUSED = read_rows(Path(__file__).with_name("refused_commands.csv"))
"""Commands, and what is said of each: an empty text is no path and no share of the work, an option that does nothing is
refused, and what a learned model does not take, its handwired reference may, and no other."""


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row["command"])
def test_bad_input_is_one_sentence_and_exit_code_2(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(
        sys.modules, "interp.machines.presets", raising=False
    )  # what registers runs in each row anew
    with patch.dict(library.BUILT, clear=True), patch.dict(checkpoints.BUILDERS):
        refused = refusal(*shlex.split(row["command"]))
    *estimate, sentence = refused.splitlines()
    assert row["said"] in sentence
    ends = (
        " expected",
        "with default options.",
    )  # a command that has worked for two seconds says how long it takes
    assert all(line.endswith(ends) for line in estimate if line), (
        "what a run would take, and no more"
    )
    assert list(tmp_path.iterdir()) == []


DURATIONS = read_rows(Path(interp.__file__).parent / "cli" / "durations.csv")
"""How long commands take; of several rows that fit what is typed the last one is said, and all stand in the help."""


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (
            {"task": "experts", "preset": "laptop", "recorded": None},
            "--preset laptop takes about 31",
        ),
        ({"task": "experts", "preset": "paper", "recorded": None}, ""),
        ({"task": "bandit", "preset": "laptop", "recorded": None}, ""),
        ({"task": "experts", "preset": "laptop", "recorded": ["a.csv"]}, "--recorded takes about"),
    ],
    ids=["measured", "another preset", "another task", "recorded"],
)
def test_a_training_says_nothing_of_a_preset_that_was_not_chosen(typed, expected):
    duration = cli_command._describe_duration("train", typed)
    assert expected in duration
    assert bool(expected) == bool(duration)


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids="-".join)
def test_every_command_speaks_the_shared_words_and_its_example_can_be_given(words):
    command = dict(commands())[words]
    flags = {flag for param in command.params for flag in param.opts}
    assert {"--json", "--quiet"} <= flags
    assert (
        words in (("models",), ("explore",), ("status",)) or "--out" in flags
    )  # these write no file
    slow = ["audit", "benchmark", "compare", "evaluate", "patch", "probe", "report", "verify"]
    assert words[0] not in slow or len(words) > 1 or "--quick" in flags
    assert "--device" not in flags or "--seed" in flags
    for row in DURATIONS:
        if row["command"] == " ".join(words) and row["options"]:
            assert flags.issuperset(re.findall(r"--\w+", row["options"]))
            assert f"interp {' '.join(words)} {row['options']} takes about " in command.epilog
    example = shlex.split(command.epilog.splitlines()[0].removeprefix("Example: "))
    assert example[: len(words) + 1] == ["interp", *words]
    command.make_context(words[-1], example[len(words) + 1 :])


def test_the_version_is_the_packages():
    assert printed("--version") == f"interp {interp.__version__}\n"


def test_json_is_one_object_and_quiet_leaves_names_alone():
    listed = answer("models")
    names = printed("models", "--quiet").split()
    assert [model["name"] for model in listed["models"]] == names
    small = [
        "--experts",
        2,
        "--rounds",
        3,
        "--episodes",
        2,
        "--dtype",
        "float64",
        "--set",
        "log_gamma=0.4",
    ]
    verified = answer("verify", "wma-handwired", *small)
    assert verified["exact"] is True
    assert verified["settings"]["arguments"] == {"log_gamma": 0.4}
    assert {check["variable"] for check in verified["checks"]} >= {"prediction", "next_log_weights"}


def test_a_learned_model_is_patched_at_a_size_that_it_serves_and_rounds_are_those_of_an_episode(
    tmp_path,
):
    small = ["--round", 3, "--map", 0, "--episodes", 4, "--components", "latent", "--out", tmp_path]
    patched = answer("patch", "wma-learned-wide", "--experts", 2, "--rounds", 5, *small)
    assert patched["n_episodes"] == 4
    assert all(path.startswith(str(tmp_path)) for path in patched["files"])
    refused = refusal("patch", "wma-learned-wide", "--rounds", 3, *small)
    assert "round 3 is out of range: the episodes have rounds 0 to 2" in refused
    refused = refusal("patch", "wma-learned-wide", "--experts", 9, *small)
    assert "it serves n_experts 2 to 8" in refused


def test_patching_is_halfway_through_few_rounds_unless_a_round_is_named(tmp_path):
    small = ["--map", 0, "--episodes", 4, "--components", "latent", "--out", tmp_path]
    patched = answer("patch", "wma-learned-wide", "--experts", 2, "--rounds", 4, *small)
    assert patched["round"] == 2


@pytest.mark.long
def test_models_in_folders_of_one_name_are_written_to_folders_of_their_own(tmp_path, monkeypatch):
    """Every trained model lies in a folder called "model", in the folder of its training."""
    monkeypatch.chdir(tmp_path)
    small = ["--rounds", 4, "--episodes", 8, "--targets", "counts", "--out", "probes", "--quiet"]
    written = []
    for name in ("one", "two"):
        machine = interp.load("wma-gru").untrained(0)
        checkpoints.save_checkpoint(machine, Path(name, "model"))
        written += invoked("probe", f"{name}/model/", *small).stdout.split()
    assert written == ["probes/one_model", "probes/two_model"]
    assert all(Path(folder, "probes.json").is_file() for folder in written)


def test_a_folder_of_results_lies_in_the_output_folder_whatever_path_a_model_has(monkeypatch):
    monkeypatch.chdir("/usr/share")
    assert options.name_folder(".") == "_usr_share"
    assert options.name_folder("..") == "_usr"


def test_shells_complete_names():
    assert options.model_names("wma-h") == ["wma-handwired"]
    assert "qlearning-learned" not in options._handwired_names("")
    assert "stratified" in options._regime_names("str")


def test_verbose_shows_the_log_and_without_it_nothing_is_said(tmp_path):
    words = [
        "verify",
        "wma-handwired",
        "--experts",
        1,
        "--rounds",
        2,
        "--episodes",
        2,
        "--dtype",
        "float64",
    ]
    words += ["--out", tmp_path, "--quiet"]
    logger = logging.getLogger("interp")
    handlers, level = list(logger.handlers), logger.level
    try:
        assert "wrote" not in invoked(*words).stderr
        assert (
            f"interp.support.files: wrote {tmp_path / 'verification.csv'}"
            in invoked("--verbose", *words).stderr
        )
    finally:
        logger.handlers = handlers
        logger.setLevel(level)
