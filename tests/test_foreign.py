"""What others wrote is text wherever it is shown: terminals, pages, pictures, tables and the list of a folder."""

import csv
import io
import json
import logging
import os
import re
import stat
import xml.etree.ElementTree as ET
from html import unescape
from urllib.parse import unquote

import matplotlib.pyplot as plt
import pandas as pd
import pytest

import interp
from interp.llm.backend import AGENTS, AgentBackend, Settings
from interp.llm.plan import instances, plan
from interp.llm.runner import run
from interp.llm.schemes import Condition, built_in_prompts
from interp.model import saved
from interp.model.checkpoints import save_checkpoint
from interp.support import foreign
from interp.support.files import file_to_write, write_figure, write_text
from reports.blocks import Prose, Table, link
from reports.page import Report, Section, write_index
from tests.cases import cases
from tests.refusals import refuses
from tests.shell import invoked, printed

HOSTILE = (
    "llama[q4]", "[/red]x", "[bold]x[/bold]", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "a\x00b", "a\rb", "a\x9b2Jb",
    "<b>&\"'</b>", "<script>alert(1)</script>", "--><x", "]]>", "[x](evil.html)", "[x](#summary)", "=1+1", "+cmd|x",
    "-2+3", "@SUM(A1)", "\t=1", "a\u202eb", "a\u200bb", "\ud800x", "$x^$", "$\\frac$", "{x}", "{{ 7*7 }}", "%s%n",
    "a\nb", "\ue000x\ue001evil.html\ue002", "Grüße 模型", "x" * 300,
)  # fmt: skip
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0d\x0e-\x1f\x7f-\x9f\u202a-\u202e\u200b\ud800-\udfff\ue000-\ue002]"
)


def no_commands(text):
    """No code that a terminal obeys or that XML forbids, and no character that cannot be written."""
    text.encode()
    assert not _UNSEEN.search(text), _UNSEEN.search(text)
    return text


def csv_in(page):
    """The CSV file that the first table of a page lets a reader download."""
    link = re.search(r'"data:text/csv;charset=utf-8,([^"]*)"', page)[1]
    return unquote(unescape(link))


def no_formulas(text):
    """No cell that a spreadsheet would compute."""
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            assert not re.match(r"[=@\t\r]|[+-](?![\d.])", cell), cell
            assert cell not in ("-2+3",), cell
    return text


@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_in_a_page_a_picture_a_table_and_a_terminal(name, tmp_path, capsys):
    (name,) = foreign.parse_json(json.dumps([name]))  # as it comes out of a file
    frame = pd.DataFrame({"model": [name, "honest"], name: [1.5, None]})
    page = Report(
        name,
        f"On {name}",
        [Section("One", [Prose(f"It is {name}."), Table(frame, name)])],
        {"model": name},
    )
    html = no_commands(page.html())
    assert 'evil.html"' not in html
    assert "<script>alert" not in html
    assert "<b>" not in html
    assert 'href="#summary"' not in html
    write_text(tmp_path / "page.html", html)
    figure, axis = plt.subplots()
    axis.set_title(name)
    axis.plot([1, 10], [1, 2], label=name)
    axis.set_xscale("log")
    axis.set_yticks([1, 2], [name, "honest"])
    axis.legend()
    for kind in ("none", "path"):
        with plt.rc_context({"svg.fonttype": kind}):
            ET.fromstring(
                no_commands(write_figure(tmp_path / f"{kind}.svg", figure).read_text("utf-8"))
            )
        axis.set_axis_off()  # paths of title and legend show what those of ticks would
    plt.close(figure)
    no_formulas(no_commands(csv_in(html)))
    no_formulas(no_commands(foreign.csv(frame)))
    from rich.console import Console

    Console(width=2000).print(foreign.rich_table(name, frame))
    shown = capsys.readouterr().out
    no_commands(shown)
    if name.isprintable():
        assert shown.count(name) == 3 or "\n" in name


def test_honest_tables_are_written_as_they_were():
    cells = {
        "a": ["x", None, "-0.5 [-0.6, -0.4]", "+1e-3 to 2", "-"],
        "b": [1, None, "y", 2.5, True],
    }
    frame = pd.DataFrame({**cells, "c": range(5), "+d": list("pqrst")})
    assert foreign.csv(frame.drop(columns="+d")) == frame.drop(columns="+d").to_csv(index=False)
    assert foreign.csv(frame).splitlines()[0] == "a,b,c,'+d"


def test_a_link_is_what_link_made():
    links = link("the [x](y.html) edges", "a/b%20c.html#x"), link("evil", "https://x.html")
    text = f"See {links[0]} and {links[1]}, `code`, **bold**."
    html = Report("R", "L", [Section("S", [Prose(text)])]).html()
    assert (
        'See <a href="a/b%20c.html#x">the [x](y.html) edges</a> and evil, <code>code</code>' in html
    )
    cells = pd.DataFrame({"report": [links[0]]})
    page = Report("R", "L", [Section("S", [Table(cells, "one")])]).html()
    assert csv_in(page) == "report\n[the [x](y.html) edges](a/b%20c.html#x)\n"
    mark, _, _ = links[0].partition("the [x]")
    assert len(mark) > 10
    assert mark not in page
    assert mark[1:] not in page


def check_written(folder):
    """Everything that a command wrote."""
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert written
    for path in written:
        text = path.read_text("utf-8")
        if path.suffix in (".csv", ".html", ".svg", ".txt"):
            no_commands(text)
        if path.suffix == ".csv":
            no_formulas(text)
        if path.suffix == ".svg":
            ET.fromstring(text)
        if path.suffix == ".html":
            assert 'evil.html"' not in text
            assert "<script>alert" not in text


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model of ours under every hostile name at once."""
    model = interp.load("wma-handwired", n_experts=3)
    model.config = type(model.config)(
        **{
            **vars(model.config),
            "name": " ".join(
                hostile for hostile in HOSTILE if len(hostile) < 99 and "\ud800" not in hostile
            ),
        }
    )
    folder = tmp_path_factory.mktemp("named") / "m"
    return save_checkpoint(model, folder)


COMMANDS = cases(__file__, "foreign COMMANDS")


@pytest.mark.slow(reason="three commands that run models: 60 CPU seconds")
@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
@pytest.mark.filterwarnings("ignore:constrained_layout not applied")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_shows_a_hostile_name_as_text(command, checkpoint, tmp_path):
    words = [str(checkpoint) if word == "MODEL" else word for word in command]
    no_commands(printed(*words, "--out", tmp_path))
    check_written(tmp_path)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
@pytest.mark.filterwarnings("ignore:constrained_layout not applied")
@pytest.mark.parametrize("command", [["score"], ["report"]], ids=" ".join)
def test_a_trace_of_a_hostile_name_is_shown_as_text(command, tmp_path):
    """`[/red]x` killed `llm score`, and `llama[q4]` was shown as `llama`."""
    name = " ".join(hostile for hostile in HOSTILE if len(hostile) < 99 and "\ud800" not in hostile)
    for hostile in (name, "llama[q4]", "[/red]x"):
        work = plan(
            Settings(hostile),
            built_in_prompts(),
            instances(("flat",), 1, 4),
            [Condition("online", "note-only")],
        )
        run(work, tmp_path, AgentBackend(hostile, AGENTS["counter"]))
    done = printed("llm", *command, tmp_path, "--out", tmp_path / "out")
    no_commands(done)
    if command == ["score"]:
        assert "llama[q4]" in done
        assert "[/red]x" in done
    check_written(tmp_path / "out")


# ------------------------------------------------------------------------------------------------ refusals and the list


@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "dangling", "socket"])
def test_what_is_no_file_is_not_written_over(kind, tmp_path):
    import socket

    path = tmp_path / "x"
    if kind == "device":
        path.symlink_to("/dev/full")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    else:
        path.symlink_to(tmp_path / "nowhere")
    before = path.lstat().st_mode
    refuses(r"is a (device|pipe|folder|link to nothing|socket)", write_text, path, "new")
    assert path.lstat().st_mode == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert file_to_write(tmp_path / "link")
    assert file_to_write(tmp_path / "new")


def test_a_rollout_is_not_saved_over_a_device(tmp_path):
    from interp.tasks import experts

    run = interp.rollout(interp.load("wma-handwired", n_experts=2), experts.sample(2, 3, 2, seed=0))
    refuses(r"'/dev/full' is a device", saved.save, run, "/dev/full")


def test_the_list_of_a_folder_passes_over_what_is_no_page_of_ours(tmp_path):
    Report(
        "Ours [x](evil.html)",
        "L",
        [Section("S", [Prose("x")])],
        about={"kind": "learned", "verdicts": "1 pass"},
    ).write(tmp_path / "ours one.html")
    head = '<title>T</title><meta name="report" content="{}">'
    foreign_pages = (
        "not json",
        "[1]",
        "{}",
        '{"kind": 1}',
        '{"kind": "x"}',
        "[" * 9000,
        '{"kind": "learned", "v": []}',
    )
    for i, page in enumerate(foreign_pages):
        (tmp_path / f"foreign-{i}.html").write_text(head.format(page.replace('"', "&quot;")))
    (tmp_path / "dangling.html").symlink_to(tmp_path / "nowhere.html")
    (tmp_path / "folder.html").mkdir()
    os.mkfifo(tmp_path / "pipe.html")
    (tmp_path / "binary.html").write_bytes(bytes(range(256)) * 20)
    odd = os.fsencode(tmp_path) + b"/odd-\xff\xfe.html"
    with open(odd, "wb") as stream:
        stream.write((tmp_path / "ours one.html").read_bytes())
    html = no_commands(write_index(tmp_path).read_text("utf-8"))
    assert '<a href="ours%20one.html">Ours [x](evil.html) (ours one)</a>' in html
    assert 'href="odd-%FF%FE.html"' in html
    assert html.count("<a href=") - html.count('<a href="#') == 2


def test_a_log_line_and_an_error_do_not_reach_the_terminal_as_commands(tmp_path):
    name, logger = "\x1b[31mx", logging.getLogger("interp")
    handlers, level = list(logger.handlers), logger.level
    try:
        done = invoked("--verbose", "patch", name)
    finally:
        logger.handlers = handlers
        logger.setLevel(level)
    assert done.exit_code == 2
    assert "\x1b" not in done.output


@pytest.mark.long
def test_a_picture_is_drawn_once_and_is_the_one_that_matplotlib_saves(monkeypatch):
    def made():
        figure, axes = plt.subplots(2, 2, layout="constrained")
        axes[0, 0].set(title="a title\nof two lines", ylabel="a label", xscale="log")
        axes[1, 1].plot([1, 2], [3, 4], label="a line")
        figure.legend(loc="outside right")
        return figure

    figure, expected, draws = made(), io.StringIO(), []
    draw = type(figure).draw
    engine, canvas = figure.get_layout_engine(), figure.canvas
    with plt.rc_context({"svg.hashsalt": "interp"}):
        made().savefig(expected, format="svg", metadata={"Date": None})
        monkeypatch.setattr(
            type(figure), "draw", lambda self, by: (draws.append(self), draw(self, by))
        )
        assert foreign.svg(figure) == expected.getvalue()
        assert draws == [figure]
    assert figure.get_layout_engine() is engine
    assert figure.canvas is canvas


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644)])
def test_who_may_read_a_file_is_what_the_umask_says(tmp_path, mask, mode):
    """Results of people's choices stay private where the user makes all files so."""
    before = os.umask(mask)
    try:
        path = write_text(tmp_path / "people.csv", "choice\n0\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
