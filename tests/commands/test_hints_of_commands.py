"""What a newcomer gets wrong on the command line: the message says what was meant."""

import re
from pathlib import Path

import pytest
import servesweep
from servesweep.commands.main import command_line

ROOT = Path(__file__).resolve().parents[2]
ONE_CELL = ["n_requests=40", "request_rate_rps=8", "block_size=16", "policy=mixed", "mem_reserve=0.1"]
READERS = ("show", "report", "plot", "compare", "export")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A directory with two runs of one cell each."""
    folder = tmp_path_factory.mktemp("runs")
    for name, settings in (("one", ONE_CELL), ("quickstart", [*ONE_CELL, "chip=a100-80-sxm"])):
        out = folder / "results" / name
        servesweep.run_grid("quickstart", settings=settings, workers=1, out=out, progress=False)
    return folder


def usage_error(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        command_line(list(arguments))
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "close"),
    [
        (["rnu", "quickstart"], "run"),
        (["exprt", "quickstart"], "export"),
        (["run", "quickstart", "--wrokers", "3"], "--workers"),
        (["run", "quickstart", "--dryrun"], "--dry-run"),
        (["goodput", "quickstart", "--find-uper"], "--find-upper"),
        (["export", "quickstart", "--neutralize-formula"], "--neutralise-formulas"),
        (["export", "quickstart", "--format", "cvs"], "csv"),
    ],
)
def test_commands_and_options_get_the_closest(capsys, words, close):
    assert usage_error(capsys, *words).endswith(f'; did you mean "{close}"?')


def test_an_option_like_no_other_lists_those_there_are(capsys):
    text = usage_error(capsys, "show", "quickstart", "--zzzzzzzz")
    assert re.search(r"unrecognized arguments: --zzzzzzzz; known: --debug, .*--where", text)


def test_a_command_like_no_other_is_refused_without_a_guess(capsys):
    assert "did you mean" not in usage_error(capsys, "xxxxxxxxx")


def test_runs_of_one_cell_are_compared(runs, monkeypatch, capsys):
    monkeypatch.chdir(runs)
    assert command_line(["compare", "one", "quickstart"]) == 0
    out = capsys.readouterr().out
    assert "1 cells in both, joined on nothing, as each is a single cell" in out
    assert "chip: h100-sxm in A, a100-80-sxm in B" in out
    assert command_line(["compare", "one", "one"]) == 0
    assert "No cell differs in these measures." in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [["show", "one"], ["plot", "one"], ["report", "one"], ["export", "one"], ["compare", "one", "one", "--json"]],
)
def test_a_run_of_one_cell_is_read_by_every_command(runs, monkeypatch, capsys, words):
    monkeypatch.chdir(runs)
    code = command_line(words)
    error = capsys.readouterr().err
    assert code in (0, 2)
    assert "unexpected" not in error
    assert code == 0 or "single request rate" in error or "one request rate" in error, error


@pytest.mark.parametrize("command", READERS)
def test_the_name_of_an_experiment_that_was_not_run(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    names = ["quickstart"] * (1 + (command == "compare"))
    assert command_line([command, *names]) == 2
    assert "it is an experiment, which `servesweep run quickstart` runs into results/quickstart" in (
        capsys.readouterr().err
    )
    Path("my.toml").write_text("x")
    assert command_line([command, *["my.toml"] * len(names)]) == 2
    assert "it is a file, and a run is a directory; `servesweep run my.toml` runs" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["quickstart", "quickstat", "elsewhere/quickstart"])
def test_load_of_a_name_says_where_the_run_is(runs, monkeypatch, name):
    monkeypatch.chdir(runs)
    hint = "results/quickstart" if name.endswith("quickstart") else "quickstart"
    with pytest.raises(ValueError, match=f'is not a run: there is no such directory; did you mean "{hint}"'):
        servesweep.load(name)


def test_load_without_any_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="there are no runs under results/"):
        servesweep.load("quickstart")


def test_the_page_of_a_warning_holds_what_it_is_about(capsys):
    """Not a page that only leads to another."""
    text = (ROOT / "sweep" / "goodput" / "searches.py").read_text("utf-8")
    page = re.search(r"rate found is largely.*?\((docs/[\w-]+\.md)\)", text, re.DOTALL)[1]
    assert "## How many requests" in (ROOT / page).read_text("utf-8")


def test_the_title_of_a_timeline_has_each_parameter_once_and_fits(tmp_path, monkeypatch):
    from servesweep.plots import timeline as drawn

    titles = []
    original = drawn.timeline_figure

    def kept(*arguments, **options):
        figure = original(*arguments, **options)
        figure.draw_without_rendering()
        titles.append((figure.get_suptitle(), figure._suptitle.get_window_extent().x1, figure.bbox.x1))
        return figure

    monkeypatch.setattr(drawn, "timeline_figure", kept)
    many = ["tp=[1,2]", "pp=[1,2]", "mfu=[0.5,0.6]", "weight_bytes=[1,2]", "kv_bytes=[1,2]", "max_running=[64,128]"]
    settings = ["n_requests=20", "mem_reserve=0.1", "block_size=16", "policy=mixed", *many]
    chosen = "request_rate_rps=8,tp=1,pp=1,mfu=0.5,weight_bytes=1,kv_bytes=1,max_running=64"
    words = ["timeline", "quickstart", "--cell", chosen, "--formats", "png", "--out", str(tmp_path)]
    assert command_line([*words, *(word for one in settings for word in ("--set", one))]) == 0
    ((title, right, width),) = titles
    assert title.count("request_rate_rps") == 1
    assert "max_running 64" in title.replace("\n", " ")
    assert right <= width
