"""``interp verify``: its options are the sizes of the tasks, and a machine takes those of its own task only."""

import inspect

import interp.tasks
from interp.cli.verify import _verify
from tests.cases import by_cases
from tests.shell import invoked


def invoke(*arguments: object) -> tuple[int, str]:
    result = invoked("verify", *arguments)
    return result.exit_code, result.output


def test_every_size_of_every_task_is_an_option() -> None:
    options = inspect.signature(_verify).parameters
    assert {size.option for task in interp.tasks.every() for size in task.sizes} <= set(options)
    assert "sizes" not in options


def test_sizes_are_combined_and_a_missing_one_is_the_tasks_default() -> None:
    code, output = invoke("qlearning-handwired", "--states", 2, 3, "--rounds", 3, "--episodes", 3)
    assert code == 0
    assert "(2, 3)" in output and "(3, 3)" in output
    assert {"(2, 3)", "(3, 3)"} == {line.split("│")[1].strip() for line in output.splitlines() if line.startswith("│")}


@by_cases("arguments, message")
def test_sizes_of_another_task_are_refused(arguments: tuple[object, ...], message: str) -> None:
    code, output = invoke(*arguments)
    assert (code, message in output) == (2, True)
