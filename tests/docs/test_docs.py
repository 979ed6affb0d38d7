"""The Markdown pages: Python snippets run and print what they say, experiments load, links lead somewhere."""

import contextlib
import io
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import servesweep
from servesweep.commands.main import command_line
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment
from step_files import write_steps

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/*.md")])
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def blocks(page: Path) -> list[tuple[str, str, int]]:
    """Language, content and line of each fenced block."""
    text = page.read_text("utf-8")
    return [(m[1], m[2], text.count("\n", 0, m.start()) + 1) for m in FENCE.finditer(text)]


def with_language(language: str) -> list[Path]:
    return [page for page in PAGES if any(block[0] == language for block in blocks(page))]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """A directory with small files of the names that snippets read; their numbers are made up."""
    folder = tmp_path_factory.mktemp("docs")
    arrival_s = np.arange(50) / 4
    rows = [f"2031-03-09 08:00:{second:010.7f},{500 + i},{40 + i}" for i, second in enumerate(arrival_s)]
    (folder / "AzureLLMInferenceTrace_conv.csv").write_text(
        "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows])
    )
    rows = [f"{1000 * second},{100 + i},{10 + i}" for i, second in enumerate(arrival_s)]
    (folder / "log.csv").write_text("\n".join(["received,in,out", *rows]))
    rows = [f"{second},{500 + i},{40 + i},{second + 0.05},{second + 0.5}" for i, second in enumerate(arrival_s)]
    head = "arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s"
    (folder / "bench.csv").write_text("\n".join([head, *rows]))
    write_steps(folder / "steps.csv")
    settings = ["n_requests=50", "request_rate_rps=[6,12]", "block_size=[16,64]", "seed=[0,1]"]
    out = folder / "results" / "quickstart"
    servesweep.run_grid(
        "quickstart", settings=settings, workers=1, out=out, requests="all", steps="all", progress=False
    )
    servesweep.run_grid(
        "quickstart", settings=[*settings, "chip=a100-80-sxm"], workers=1, out=folder / "results/a100", progress=False
    )
    return folder


def commands(page: Path) -> list[str]:
    """The servesweep commands of a page's shell blocks."""
    contents = [content.replace("\\\n", " ") for language, content, _ in blocks(page) if language == "sh"]
    lines = [line for content in contents for line in content.splitlines()]
    return [line for line in lines if line.startswith("servesweep ")]


REAL = ROOT / "docs" / "first-hour.md"  # its sweeps are run as they are


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page) and page != REAL], ids=name)
def test_commands_run(page, stand_ins, tmp_path, monkeypatch, capsys):
    """Sweeps are only planned; what reads a run finds a small one of the same name."""
    shutil.copytree(stand_ins, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    command_line(["init", "my.toml"])
    for line in commands(page):
        words = shlex.split(line, comments=True)[1:]
        if words[0] == "run":
            words = [*(word for word in words if word != "--dry-run"), "--dry-run"]
        if words[0] == "goodput":
            words += ["--set", "n_requests=50", "--iters", "2"]
        if words[0] == "placement":
            words += ["--set", "n_requests=50", "--set", "tp=4", "--set", "pp=1", "--rel-tol", "0.5"]
        if words[0] == "calibrate":
            words += ["--fit", "mfu", "--candidates", "64"]
        if words[0] == "init":
            words.append("--force")
        assert command_line(words) == 0, f"{line}: {capsys.readouterr().err}"
        capsys.readouterr()


def test_the_first_hour_prints_what_it_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = blocks(REAL)
    for (language, content, line), following in zip(found, [*found[1:], ("", "", 0)], strict=True):
        if language != "sh":
            continue
        for command in content.splitlines():
            capsys.readouterr()
            assert command_line(shlex.split(command, comments=True)[1:]) == 0, command
        if following[0] == "text":
            assert without_ends(capsys.readouterr().out) == without_ends(following[1]), f"line {line}"


def without_ends(text: str) -> list[str]:
    """Lines without the spaces at their ends and without empty ones; ids of cells are the rules' version's."""
    return [re.sub(r"\b[0-9a-f]{16}\b", "0" * 16, line.rstrip()) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("page", with_language("python"), ids=name)
def test_snippets_run_and_print_what_is_below_them(page, stand_ins, tmp_path, monkeypatch):
    shutil.copytree(stand_ins, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "snippet"}  # the snippets of a page build on each other
    found = blocks(page)
    for (language, content, line), following in zip(found, [*found[1:], ("", "", 0)], strict=True):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # Line numbers of a traceback are those of the page.
            exec(compile("\n" * line + content, str(page), "exec"), namespace)
        if following[0] == "text":
            assert printed.getvalue() == following[1], f"{name(page)}, line {line}"


CELLS = {
    "README.md": [2 * 2 * 2 * 2 * 11],
    "docs/presets.md": [2],
    "docs/sweeps.md": [3 * 16 * 2 * 2 * 2 * (1 + 2 + 1)],
}  # of each experiment


@pytest.mark.parametrize("page", with_language("toml"), ids=name)
def test_experiments_have_the_cells_that_they_say(page, stand_ins):
    found = []
    for language, content, line in blocks(page):
        if language == "toml":
            path = stand_ins / f"line-{line}.toml"
            path.write_text(content)
            found.append(len(expand(load_experiment(path)).cells))
    assert found == CELLS[name(page)]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page):
    for target in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name(page)}: {target} does not exist"
        assert not anchor or anchor in anchors(file), f"{name(page)}: {target} has no such heading"
    assert page.read_text("utf-8").endswith("\n")


def test_every_page_of_docs_is_in_its_index():
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    assert [page for page in NAMES if page.startswith("docs/") and f"({page[5:]})" not in index] == ["docs/README.md"]


@pytest.mark.parametrize("notebook", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run_and_print_what_they_hold(notebook, tmp_path, monkeypatch):
    import matplotlib
    import matplotlib.pyplot

    matplotlib.use("Agg")
    matplotlib.pyplot.close("all")  # of other pages
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "notebook"}
    pictures = 0
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"{notebook.name}, {cell['id']}", "exec"), namespace)
        due = "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")
        assert printed.getvalue() == due, "run: python docs/notebooks.py"
        held = sum("image/png" in output.get("data", {}) for output in cell["outputs"])
        assert len(matplotlib.pyplot.get_fignums()) == held
        matplotlib.pyplot.close("all")
        pictures += held
    assert pictures > 0


def test_notebooks_are_those_of_their_source(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import notebooks

    for name, cells in (("policies", notebooks.POLICIES), ("disaggregated", notebooks.DISAGGREGATED)):
        held = json.loads((notebooks.FOLDER / f"{name}.ipynb").read_text("utf-8"))["cells"]
        assert ["".join(cell["source"]) for cell in held] == [notebooks.source(text)[1] for text in cells]
    sys.modules.pop("notebooks")


def test_the_page_of_options_is_that_of_the_command(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import options

    assert options.PAGE.read_text("utf-8") == options.page(), "run: python docs/options.py"
    sys.modules.pop("options")


def test_the_page_of_columns_is_that_of_the_schemas(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import columns

    text = columns.PAGE.read_text("utf-8")
    assert text == columns.page(), "run: python docs/columns.py"
    sys.modules.pop("columns")


API = sorted((ROOT / "docs" / "api").glob("*.rst"))
MOST_WORDS = 36_000


def test_the_pages_stay_short():
    words = {page: len((ROOT / page).read_text("utf-8").split()) for page in NAMES if page.startswith("docs/")}
    assert sum(words.values()) < MOST_WORDS, words


FOR_DEVELOPERS = ("docs/architecture.md", "docs/engine.md", "CONTRIBUTING.md")


@pytest.mark.parametrize("page", [page for page in NAMES if page not in FOR_DEVELOPERS])
def test_pages_for_users_have_no_lanes(page):
    """A lane is a row of the engine, and nothing else."""
    assert re.findall(r"\w*lanes?\b.*", (ROOT / page).read_text("utf-8"), re.IGNORECASE) == []


@pytest.mark.parametrize("page", FOR_DEVELOPERS)
def test_files_that_pages_for_developers_name_exist(page):
    text = FENCE.sub("", (ROOT / page).read_text("utf-8"))
    named = set(re.findall(r"`([\w/]+/(?:\w+\.py)?)`", text))
    named -= {"build/"}  # is there after an install
    assert named
    assert [name for name in named if not any((ROOT / folder / name).exists() for folder in ("", "sweep"))] == []
    packages = "|".join(path.name for path in (ROOT / "sweep").iterdir() if (path / "__init__.py").exists())
    for package, module in re.findall(rf"`({packages})\.(\w+)", text):
        assert (ROOT / "sweep" / package / f"{module}.py").exists(), f"{package}.{module}"


def test_the_page_of_the_engine_has_every_phase():
    from servesweep.kernels.phases import NAMES as phases

    text = (ROOT / "docs" / "engine.md").read_text("utf-8")
    assert [name for name in phases if f"*{name.replace('_', ' ')}*" not in text] == []


def test_every_page_that_the_code_names_exists():
    files = [file for part in ("sweep", "kernels", "configs", "benchmarks") for file in (ROOT / part).rglob("*.*")]
    texts = [file.read_text("utf-8") for file in files if file.suffix in (".py", ".toml", ".js", ".html")]
    named = {name for text in texts for name in re.findall(r"(?<![\w/])docs/[\w-]+\.md", text)}
    assert named - set(NAMES) == set()
    assert named


def test_the_reference_has_every_public_name_once():
    pages = [page.read_text("utf-8").partition("currentmodule:: servesweep.")[0] for page in API]
    named = [name for page in pages for name in re.findall(r"^\.\. (?:auto|py:)\w+:: (\w+)$", page, re.MULTILINE)]
    assert sorted(named) == sorted(servesweep.__all__)


def test_every_page_is_in_the_tree_of_the_site():
    named = re.findall(r"[\w/-]+", (ROOT / "docs" / "conf.py").read_text("utf-8"))
    assert [page for page in NAMES if page.startswith("docs/") and page[5:-3] not in named] == []


def test_licence_is_complete():
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert len(text.split()) > 1500
