"""Plots: the numbers in them, what is marked, and the files that the command writes."""

import itertools

import matplotlib

matplotlib.use("Agg")

import numpy as np
import pandas as pd
import pytest
import servesweep
from matplotlib.figure import Figure
from servesweep import find_goodput, load, plots
from servesweep.analysis.ranking import ranked
from servesweep.commands.main import command_line
from servesweep.plots import numbers as plot_numbers
from servesweep.plots.style import COLOURS, curve_style, is_geometric, label

SWEEP = {
    "name": "plotted",
    "workload": {"n_requests": 80, "seed": [0, 1, 2], "request_rate_rps": [2, 8, 40]},
    "instance": {"model": ["llama-3.1-8b", "qwen2.5-14b"], "chip": "a10", "tp": [1, 2]},
    "scheduler": {"policy": ["mixed", "chunked"], "block_size": [16, 64]},
    "slo": {"ttft_ms": 3000, "tpot_ms": 80},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plots")
    steps = "policy=mixed,tp=2,block_size=16,seed=0,request_rate_rps=8,model=llama-3.1-8b"
    servesweep.run_grid(SWEEP, workers=1, out=folder / "results" / "plotted", steps=steps, progress=False)
    return folder


@pytest.fixture
def cells(folder):
    return servesweep.load(folder / "results" / "plotted")


@pytest.fixture
def ax():
    return Figure(layout="constrained").subplots()


def lines(ax):
    """Curves by name: their x and y as drawn."""
    handles, names = ax.get_legend_handles_labels()
    found = {}
    for name, handle in zip(names, handles, strict=True):
        line = handle[0] if isinstance(handle, tuple) else handle
        found[name] = (np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float))
    return found


# ------------------------------------------------------------------------------------------------------------- numbers


def test_a_curve_is_the_mean_of_the_seeds_of_its_best_configuration(cells, ax):
    chosen = cells[cells["model"] == "llama-3.1-8b"]
    numbers = plot_numbers.curves(chosen, "ttft_p99_s")
    for policy in ("mixed", "chunked"):
        best = next(one for one in ranked(chosen) if one.parameters["policy"] == policy)
        rows = chosen[chosen["policy"] == policy]
        for key in ("tp", "block_size"):
            rows = rows[rows[key] == best.parameters[key]]
        due = rows.groupby("request_rate_rps")["ttft_p99_s"].agg(["mean", "min", "max", "size"])
        here = numbers[numbers["curve"] == policy]
        np.testing.assert_allclose(here[["ttft_p99_s", "ttft_p99_s_low", "ttft_p99_s_high", "seeds"]], due)
        assert set(here["configuration"]) == {f"tp {best.parameters['tp']}, block_size {best.parameters['block_size']}"}
    drawn = lines(plots.curves(chosen, "ttft_p99_s", ax=ax))
    assert list(drawn) == ["mixed", "chunked"]
    factor = 1000 if "(ms)" in ax.get_ylabel() else 1
    np.testing.assert_allclose(drawn["mixed"][1], factor * numbers[numbers["curve"] == "mixed"]["ttft_p99_s"])
    assert ax.get_xlabel() == "Offered request rate (req/s)"
    assert any("SLO" in text.get_text() for text in ax.texts)
    assert ax.get_legend().get_title().get_text() == "each with its best tp, block_size"


def test_infeasible_cells_are_marked_and_not_dropped(cells, ax):
    assert set(cells[cells["status"] == "infeasible"]["model"]) == {"qwen2.5-14b"}
    by = ["model", "tp"]
    numbers = plot_numbers.curves(cells, by=by)
    without = numbers[numbers["status"] == "infeasible"]
    assert without[["curve", "request_rate_rps"]].values.tolist() == [["qwen2.5-14b, tp 1", x] for x in (2, 8, 40)]
    plots.curves(cells, ax=ax, by=by)
    crosses = [line for line in ax.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in crosses] == [[2, 8, 40]]
    assert "infeasible or failed" in lines(ax)
    map_ax = Figure().subplots()
    plots.heatmap(cells, "tp", "model", ax=map_ax)
    assert [text.get_text() for text in map_ax.texts].count("\u00d7") == 1
    table = plot_numbers.heatmap(cells, "tp", "model")
    assert table["status"].tolist().count("infeasible") == 1
    front = plot_numbers.frontier(cells, "tp", by=["model"])
    assert front[front["status"] == "infeasible"][["curve", "tp"]].values.tolist() == [["qwen2.5-14b", 1.0]]


def test_the_frontier_is_the_best_kept_rate(cells, ax):
    numbers = plot_numbers.frontier(cells, "tp", by=["policy"], per_gpu=False)
    for row in numbers.to_dict("records"):
        rows = cells[(cells["policy"] == row["curve"]) & (cells["tp"] == row["tp"])]
        best = ranked(rows)[0]
        assert row["request_rate_rps"] == best.rate_rps
        assert row["is_top"] == best.is_top
        assert row["request_rate_rps_low"] <= row["request_rate_rps"] <= row["request_rate_rps_high"]
    plots.frontier(cells, "policy", ax=ax, by=["model"])
    assert [text.get_text() for text in ax.get_xticklabels()] == ["mixed", "chunked"]


def test_the_frontier_of_a_search_is_what_it_found(tmp_path, ax):
    settings = {"n_requests": 60, "policy": ["mixed", "chunked"], "block_size": [16, 64], "mem_reserve": 0.1}
    find_goodput("quickstart", slo={"ttft_ms": 200}, iters=3, out=tmp_path, settings=settings, progress=False)
    found = load(tmp_path, "goodput")
    numbers = plot_numbers.frontier(found, "block_size", per_gpu=False)
    assert len(numbers) == 4
    for row in numbers.to_dict("records"):
        cells = found[(found["policy"] == row["curve"]) & (found["block_size"] == row["block_size"])]
        assert row["request_rate_rps"] == cells["max_rate_rps"].iloc[0] > 0
        assert row["is_top"] == (cells["ending"].iloc[0] == "upper_end_passes")
    plots.frontier(found, "block_size", ax=ax)
    assert ax.get_ylabel() == "Req/s per GPU at 90% attainment"


def test_heat_maps_of_rates_and_of_measures(cells):
    table = plot_numbers.heatmap(cells[cells["model"] == "llama-3.1-8b"], "tp", "policy")
    for row in table.to_dict("records"):
        rows = cells[(cells["policy"] == row["policy"]) & (cells["tp"] == row["tp"])]
        assert row["request_rate_rps"] == ranked(rows[rows["model"] == "llama-3.1-8b"])[0].rate_rps
    with pytest.raises(ValueError, match="choose one of each tp, block_size"):
        plot_numbers.heatmap(
            cells[cells["model"] == "llama-3.1-8b"], "request_rate_rps", "policy", value="kv_utilization_peak"
        )
    one = cells[(cells["model"] == "llama-3.1-8b") & (cells["tp"] == 2) & (cells["block_size"] == 16)]
    table = plot_numbers.heatmap(one, "request_rate_rps", "policy", value="kv_utilization_peak")
    due = one.groupby(["request_rate_rps", "policy"], observed=True)["kv_utilization_peak"].mean()
    for rate, policy, value, _ in table.itertuples(index=False):
        assert value == pytest.approx(due[rate, policy])


def test_the_pareto_front_has_no_dominated_point_and_no_tie():
    rng = np.random.default_rng(3)
    for n in (1, 2, 30):
        x, y = rng.integers(0, 6, n), rng.integers(0, 6, n)
        front = plot_numbers.on_front(x, y)
        points = list(zip(x.tolist(), y.tolist(), strict=True))
        for place, (a, b) in enumerate(points):
            beaten = any(
                c >= a and d >= b and ((c, d) != (a, b) or other < place)
                for other, (c, d) in enumerate(points)
                if other != place
            )
            assert front[place] != beaten


def test_pareto_points_are_throughput_against_user_rate(cells, ax):
    numbers = plot_numbers.pareto(cells)
    row = numbers.iloc[5]
    same = cells[cells["policy"] == row["curve"]]
    for key in ("model", "tp", "block_size", "request_rate_rps"):
        same = same[same[key] == row[key]]
    assert len(same) == row["seeds"] == 3
    assert row["output_rate_per_user_tps"] == pytest.approx((1 / same["tpot_p50_s"]).mean())
    plots.pareto(cells, ax=ax)
    drawn = lines(ax)["mixed"]
    assert len(drawn[0]) == numbers[(numbers["curve"] == "mixed") & numbers["on_front"]].shape[0]


def test_batch_size_over_time_keeps_the_area_under_the_log(folder, ax):
    steps = servesweep.load(folder / "results" / "plotted", "steps")
    cell = servesweep.load(folder / "results" / "plotted").set_index("cell_id").loc[steps["cell_id"].iloc[0]]
    area = float((steps["running"] * (steps["end_s"] - steps["start_s"])).sum())
    for bins in (10, 600, 10**6):
        table = plot_numbers.over_time(steps, cell["num_blocks"], bins)
        ends = np.append(table["time_s"].to_numpy()[1:], steps["end_s"].max())
        assert float((table["running"] * (ends - table["time_s"])).sum()) == pytest.approx(area)
        assert table["running_max"].max() == steps["running"].max()
        assert table["kv_utilization_max"].max() == pytest.approx(cell["kv_utilization_peak"])
        assert (table["running"] <= table["running_max"] + 1e-9).all()
    plots.over_time(steps, cell["num_blocks"], ax=ax)
    assert ax.get_ylabel() == "Running requests"
    assert plot_numbers.over_time(steps, None)["kv_utilization"].isna().all()


# ------------------------------------------------------------------------------------------------------------ pictures


def test_one_point_still_plots(cells, ax):
    one = cells[(cells["status"] == "ok")].iloc[:1]
    for y in ("attainment", "ttft_p99_s", "preemptions"):
        plots.curves(one, y, ax=ax)
    ax.figure.draw_without_rendering()
    for draw in (plots.pareto, lambda df, ax: plots.heatmap(df, "tp", "policy", ax=ax, value="attainment")):
        figure = Figure(layout="constrained")
        draw(one, ax=figure.subplots())
        figure.draw_without_rendering()


def test_nothing_but_infeasible_cells_still_plots(cells):
    none = cells[cells["status"] == "infeasible"]
    for kind, options in (
        ("curves", {}),
        ("frontier", {"x": "policy"}),
        ("pareto", {}),
        ("heatmap", {"x": "policy", "y": "block_size"}),
    ):
        figure, _ = plots.panels(none, kind, **options)
        figure.draw_without_rendering()


def test_panels_have_equal_scales_and_equal_colours(cells):
    figure, numbers = plots.panels(cells, "curves", panel="model", y="e2e_p99_s")
    first, second = figure.axes
    assert (first.get_xlim(), first.get_ylim(), first.get_yscale()) == (
        second.get_xlim(),
        second.get_ylim(),
        second.get_yscale(),
    )
    colours = [{line.get_label(): line.get_color() for line in ax.lines} for ax in (first, second)]
    for handles, names in (ax.get_legend_handles_labels() for ax in (first, second)):
        for name, handle in zip(names, handles, strict=True):
            if name in ("mixed", "chunked"):
                assert handle[0].get_color() == COLOURS[["mixed", "chunked"].index(name)]
    assert colours
    assert numbers["panel_model"].unique().tolist() == ["llama-3.1-8b", "qwen2.5-14b"]
    assert [first.get_title("left"), second.get_title("left")] == ["model llama-3.1-8b", "model qwen2.5-14b"]
    assert len(figure.legends) == 1


def test_styles_differ_and_scales_are_recognised():
    looks = [(s["color"], s["marker"], s["linestyle"]) for s in map(curve_style, range(64))]
    assert len(set(looks)) == 64
    assert len({curve_style(i)["marker"] for i in range(8)}) == 8
    assert is_geometric([1, 2, 4, 8])
    assert is_geometric([16, 64, 128, 256])
    assert not is_geometric([1, 2, 3, 4, 5])
    assert not is_geometric([1, 10])
    assert not is_geometric([0, 1, 10])
    assert label("ttft_p99_s", "ms") == "TTFT p99 (ms)"
    assert label("kv_utilization_peak", "share") == "KV utilization peak (%)"


# ------------------------------------------------------------------------------------------------------------- command


@pytest.fixture
def inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.mark.slow
@pytest.mark.usefixtures("inside")
def test_the_command_writes_pictures_and_numbers(folder, tmp_path, capsys):
    assert command_line(["plot", "plotted", "--panels", "model", "--by", "policy,tp"]) == 0
    paths = capsys.readouterr().out.split()
    names = ("curves-attainment", "curves-ttft_p99_s", "curves-tpot_p99_s", "pareto")
    where = "results/plotted/plots"
    assert paths == [f"{where}/{name}.{form}" for name, form in itertools.product(names, ("png", "svg", "csv"))]
    assert (folder / paths[0]).read_bytes().startswith(b"\x89PNG")
    assert (folder / paths[1]).read_text().rstrip().endswith("</svg>")
    table = pd.read_csv(folder / paths[2])
    assert set(table["curve"]) == {f"{policy}, tp {tp}" for policy in ("mixed", "chunked") for tp in (1, 2)}
    assert command_line(["plot", "plotted", "--panels", "model", "--by", "policy,tp", "--out", str(tmp_path)]) == 0
    for path in paths:
        assert (tmp_path / path.rpartition("/")[2]).read_bytes() == (folder / path).read_bytes()


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["frontier", "--x", "tp"], "frontier-tp"),
        (["heatmap", "--x", "tp", "--y", "block_size"], "heatmap-block_size-tp"),
        (["curves", "--y", "e2e_p99_s", "--target", "0.5"], "curves-e2e_p99_s"),
        (["time"], "time-"),
    ],
)
def test_every_kind_has_a_command(arguments, name, tmp_path, capsys):
    assert command_line(["plot", "plotted", *arguments, "--out", str(tmp_path), "--formats", "png"]) == 0
    (path,) = capsys.readouterr().out.split()
    assert path.startswith(str(tmp_path / name))
    assert path.endswith(".png")


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["curves", "--y", "ttft"], "'ttft' is no column"),
        (["curves", "--y", "policy"], "'policy' is no column of numbers"),
        (["curves", "--x", "tp"], "choose one of 2, 8, 40"),
        (["curves", "--by", "polcy"], 'did you mean "policy"?'),
        (["curves", "--cell", "a"], "--cell has no effect on curves"),
        (["--x", "tp"], "only with a KIND"),
        (["frontier"], "frontier needs --x"),
        (["frontier", "--x", "tp", "--where", "request_rate_rps=2"], "a frontier needs a sweep of request rates"),
        (["heatmap", "--x", "tp", "--y", "tp"], "needs two parameters"),
        (["pareto", "--panels", "nope"], "'nope' is no parameter"),
        (["pareto", "--formats", "pdf"], "'pdf' is no format; known: png, svg, csv"),
        (["time", "--cell", "zz"], "no cell id begins with it"),
        (["time", "--panels", "tp"], "draws one cell"),
        (["pareto", "--out", "results/plotted/cells.parquet"], "cannot be written"),
    ],
)
def test_what_cannot_be_drawn_is_said(arguments, words, capsys):
    assert command_line(["plot", "plotted", *arguments]) == 2
    assert words in capsys.readouterr().err
