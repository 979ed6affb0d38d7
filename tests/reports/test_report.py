"""The report: its data, its size, and what a browser shows of it."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import servesweep
from servesweep.commands.main import command_line
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment
from servesweep.experiment.toml_values import format_toml
from servesweep.measures.columns import MEASURES
from servesweep.reports.html import report_data, report_html

SWEEP = {
    "name": "reported",
    "workload": {"kind": "synthetic", "prompt": {"mean": 300, "sigma": 0.5, "lo": 16, "hi": 900}, "output": 20,
                 "n_requests": 60, "seed": [0, 1], "request_rate_rps": [2, 8, 40]},
    "instance": {"model": ["llama-3.1-8b", "qwen2.5-14b"], "chip": "a10", "tp": [1, 2]},
    "scheduler": {"policy": ["mixed", "chunked"], "block_size": 16},
    "slo": {"ttft_ms": 1000, "tpot_ms": 80},
}  # fmt: skip
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "results" / "reported"
    servesweep.run_grid(SWEEP, workers=1, out=folder, progress=False)
    return folder


@pytest.fixture
def cells(run):
    return servesweep.load(run)


def embedded(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


# ---------------------------------------------------------------------------------------------------------------- data


def test_the_page_holds_every_cell(cells):
    data = embedded(report_html(cells))
    assert data["id"] == cells["cell_id"].tolist()
    assert [data["statuses"][s] for s in data["status"]] == cells["status"].astype(str).tolist()
    for axis, places in zip(data["axes"], data["axis"], strict=True):
        assert [axis["values"][place] for place in places] == cells[axis["name"]].astype(object).tolist()
    assert [axis["name"] for axis in data["axes"]] == ["seed", "request_rate_rps", "model", "tp", "policy"]
    for about, values in zip(data["measures"], data["measure"], strict=True):
        found = np.array([np.nan if value is None else value for value in values])
        np.testing.assert_allclose(found, cells[about["name"]].astype(float), rtol=6e-5)
    assert {row[0] for row in data["fixed"]} >= {"chip", "block_size", "workload"}
    assert data["errors"][data["error"][data["status"].index(1)]].startswith("the weights of qwen2.5-14b")


def test_the_toml_of_the_page_gives_the_same_cells(cells, tmp_path):
    path = tmp_path / "again.toml"
    path.write_text(embedded(report_html(cells))["toml"])
    assert [cell.cell_id for cell in expand(load_experiment(path)).cells] == cells["cell_id"].tolist()


def test_toml_of_odd_values():
    import tomllib

    tables = {"name": 'a"b\\c', "t": {"x": [1, 2.5], "odd key": {"a b": "\u00e9\n", "ok": True}, "w": 1e-7}}
    tables["t"].pop("odd key")
    tables["t"]["columns"] = {"its name": "\u00e9\n", "ok": True}
    assert tomllib.loads(format_toml(tables)) == tables


def test_it_needs_no_network_and_nothing_in_the_data_ends_its_element(cells):
    cells.attrs["config"]["name"] = "</script><script>alert(1)</script>"
    html = report_html(cells)
    assert html.count("<script") == 2
    assert "default-src 'none'" in html
    assert set(re.findall(r"https?://[^\s\"'<>]+", html)) == {"http://www.w3.org/2000/svg"}
    assert embedded(html)["name"] == "</script><script>alert(1)</script>"


def test_five_thousand_cells_are_below_three_megabytes(cells):
    rng = np.random.default_rng(0)
    ok = cells[cells["status"] == "ok"]
    many = pd.concat([ok] * (5000 // len(ok) + 1), ignore_index=True).iloc[:5000]
    for name in MEASURES:
        if many[name].dtype.kind == "f":
            many[name] = many[name] * rng.uniform(0.5, 2, len(many))
    many["cell_id"] = [f"{i:016x}" for i in range(len(many))]
    many["block_size"] = rng.choice([8, 16, 32, 64], len(many))
    many.attrs = cells.attrs
    assert len(report_html(many).encode()) < 3_000_000


def test_a_single_cell_and_no_feasible_cell_make_a_page_too(cells):
    for some in (cells.iloc[:1], cells[cells["status"] == "infeasible"]):
        some.attrs = cells.attrs
        data = report_data(some, {}, 0.9)
        assert len(data["id"]) == len(some)
        assert data["axes"]
    with pytest.raises(ValueError, match="nothing to report"):
        report_html(cells.iloc[:0])


def test_the_command_writes_it_into_the_run(run, capsys, monkeypatch):
    monkeypatch.chdir(run.parents[1])
    assert command_line(["report", "reported"]) == 0
    assert capsys.readouterr().out == "results/reported/report.html\n"
    data = embedded((run / "report.html").read_text("utf-8"))
    assert ["numpy", np.__version__] in data["facts"]
    assert command_line(["report", "reported", "--out", "nowhere/report.html"]) == 2
    assert "cannot be written" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------- browser


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium, chromium-driver)")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(browser, run, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(report_html(servesweep.load(run)), encoding="utf-8")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 1280, "height": 1600, "deviceScaleFactor": 1, "mobile": False}
    )
    browser.get(path.as_uri())
    yield browser
    assert browser.get_log("browser") == []


def find(page, css):
    return page.find_elements("css selector", css)


def chip(page, axis, value):
    (found,) = [one for one in find(page, f"[data-axis='{axis}']") if one.text == value]
    return found


def table(page):
    return [[cell.text for cell in row.find_elements("tag name", "td")] for row in find(page, "#cells tbody tr")]


def header(page, name):
    (found,) = [one for one in find(page, "#cells thead button") if one.text.split(" ")[0] == name]
    return found


def test_the_page_opens_with_verdict_table_and_plots(page, cells):
    from servesweep.analysis.ranking import best_by_policy
    from servesweep.analysis.verdicts import format_slos, format_verdict

    assert find(page, "#verdict")[0].text == format_verdict(best_by_policy(cells), format_slos(cells))
    assert find(page, "#left")[0].text == f"{len(cells)} of {len(cells)} cells chosen."
    assert len(table(page)) == min(50, len(cells))
    ok = cells[cells["status"] == "ok"]
    assert len(find(page, "#curves circle")) == len(ok) // 2  # two seeds are one point
    assert len(find(page, "#pareto circle")) == len(ok)
    assert len(find(page, "#curves path[data-cell]")) == len(cells[cells["status"] == "infeasible"]) // 2
    assert "target 90 %" in find(page, "#curves")[0].text


def test_a_click_on_a_value_filters_by_it_and_a_second_undoes_it(page, cells):
    chip(page, "policy", "mixed").click()
    chosen = cells[cells["policy"] == "mixed"]
    assert find(page, "#left")[0].text == f"{len(chosen)} of {len(cells)} cells chosen."
    place = [one.text for one in find(page, "#cells thead th")].index("policy")
    assert {row[place] for row in table(page)} == {"mixed"}
    chip(page, "tp", "2").click()
    assert find(page, "#left")[0].text.startswith(f"{len(chosen[chosen['tp'] == 2])} of")
    assert chip(page, "tp", "2").get_attribute("aria-pressed") == "true"
    chip(page, "tp", "2").click()
    find(page, "#legend button")[0].click()  # mixed again
    assert find(page, "#left")[0].text.startswith(f"{len(cells)} of")
    chip(page, "request_rate_rps", "40").click()
    find(page, "#clear")[0].click()
    assert find(page, "#left")[0].text.startswith(f"{len(cells)} of")


def test_hovering_shows_the_cell_and_a_click_shows_all_of_it(page, cells):
    from selenium.webdriver import ActionChains

    point = find(page, "#curves circle")[-1]  # the one on top
    cell = cells.iloc[int(point.get_attribute("data-cell"))]
    ActionChains(page).move_to_element(point).perform()
    tip = find(page, "#tip")[0]
    assert tip.value_of_css_property("visibility") == "visible"
    assert tip.text.splitlines()[0] == cell["cell_id"]
    assert f"policy {cell['policy']}" in tip.text
    point.click()
    assert find(page, "#detail h2")[0].text == f"Cell {cell['cell_id']}"
    facts = {
        one.find_element("tag name", "dt").text: one.find_element("tag name", "dd").text
        for one in find(page, "#detail dl > div")
    }
    assert facts["finished"] == str(cell["finished"])
    assert facts["attainment"] == f"{100 * cell['attainment']:.1f} %"
    (button,) = [one for one in find(page, "#detail .chip") if one.text == cell["model"]]
    button.click()
    assert find(page, "#left")[0].text.startswith(f"{(cells['model'] == cell['model']).sum()} of")


def test_the_table_sorts_and_searches(page, cells):
    header(page, "ttft_p99_s").click()
    place = [one.text.split(" ")[0] for one in find(page, "#cells thead th")].index("ttft_p99_s")
    due = cells.loc[cells["ttft_p99_s"].idxmax()]
    assert table(page)[0][0] == due["cell_id"]
    header(page, "ttft_p99_s").click()
    assert table(page)[0][0] == cells.loc[cells["ttft_p99_s"].idxmin()]["cell_id"]
    assert table(page)[-1][place] in ("\u2013", table(page)[-1][place])
    find(page, "#find")[0].send_keys("chunked 40")
    rows = cells[(cells["policy"] == "chunked") & (cells["request_rate_rps"] == 40)]
    assert {row[0] for row in table(page)} == set(rows["cell_id"])


def test_other_measures_axes_and_colours_are_drawn(page):
    from selenium.webdriver.support.select import Select

    Select(find(page, "#y")[0]).select_by_visible_text("ttft_p99_s")
    assert "SLO 1,000 ms" in find(page, "#curves")[0].text
    Select(find(page, "#x")[0]).select_by_visible_text("tp")
    assert "tp (GPUs)" in find(page, "#curves")[0].text
    Select(find(page, "#colour")[0]).select_by_visible_text("model")
    assert [one.text for one in find(page, "#legend button")] == ["llama-3.1-8b", "qwen2.5-14b"]
    Select(find(page, "#colour")[0]).select_by_visible_text("nothing")
    assert find(page, "#legend button") == []
    assert len(find(page, "#curves circle")) > 0


def test_it_fits_a_phone(page):
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    )
    page.refresh()
    assert page.execute_script("return document.documentElement.scrollWidth") == 390
    width = page.execute_script("return document.querySelector('#curves svg').getBoundingClientRect().width")
    assert 300 < width < 390
    chip(page, "policy", "mixed").click()
    assert find(page, "#left")[0].text.startswith("24 of")
