"""Workers of a cluster: a real Dask scheduler with two worker processes on loopback, and Ray on this machine."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys

import pytest
import servesweep.runner.clusters as clusters
import servesweep.runner.execution as execution
import small_sweep
from patience import HANGS_S
from servesweep.commands.main import command_line
from servesweep.experiment.tables import ConfigError
from servesweep.runner.runner import run_grid
from servesweep.runner.tasks import Task
from small_sweep import CELLS, FEASIBLE, digests, kept_cells, wait_until

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="dask is not installed: pip install 'servesweep[dask]'"
)
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'servesweep[ray]'"
)


# Workers find the tasks of this module, and what it imports, by these folders.
FOLDERS = (os.path.dirname(__file__), os.path.dirname(small_sweep.__file__))

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("folder")]


class Cluster:
    """A scheduler and two workers, each worker with a nanny that starts it again when it dies."""

    def __init__(self, folder):
        self.folder, self.file = folder, folder / "scheduler.json"
        options = ["--no-dashboard", "--scheduler-file", str(self.file)]
        self.scheduler = self._start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", *options)
        wait_until(lambda: self.file.exists() and self.file.read_text().endswith("}"))
        self.workers = [self._start("dask_worker", "--nthreads", "1", *options) for _ in range(2)]
        self.address = json.loads(self.file.read_text())["address"]
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=HANGS_S)

    def _start(self, module, *options):
        environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
        path = os.pathsep.join([*FOLDERS, *filter(None, [os.environ.get("PYTHONPATH")])])
        with open(self.folder / "log.txt", "a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{module}", *options],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**environment, "PYTHONPATH": path},
            )

    def stop(self):
        for process in (*self.workers, self.scheduler):
            process.terminate()
        for process in (*self.workers, self.scheduler):
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


class KillerTask(Task):
    """A task that ends its worker when one of its cells is guilty."""

    def run(self):
        if any((system.rate, system.policy, system.block_size) == (4, "chunked", 8) for system in self.systems):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run()


def start(address, *options):
    command = [sys.executable, "-m", "servesweep", "run", "small.toml", "--out", "out", "--backend", "dask"]
    return subprocess.Popen(
        [*command, "--scheduler", address, "--max-batch-cells", "3", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@needs_dask
def test_dask_gives_the_same_bytes(undisturbed, folder, cluster):
    run = run_grid(
        "small.toml", out="out", progress=False, backend="dask", scheduler=cluster.address, max_batch_cells=5
    )
    assert run.counts["ok"] == FEASIBLE
    assert digests(folder / "out") == digests(undisturbed.directory)
    import servesweep

    pids = set(servesweep.load("out", "timings")["pid"].dropna())
    assert os.getpid() not in pids
    assert len(pids) == 2
    assert json.loads((folder / "out" / "run.json").read_text())["backend"] == "dask"


@needs_dask
def test_a_killed_dask_worker_costs_nothing(undisturbed, folder, cluster):
    from distributed import Client

    with Client(cluster.address, set_as_default=False) as client:
        pids = list(client.run(os.getpid).values())
        process = start(cluster.address)
        wait_until(lambda: len(kept_cells(folder / "out")) > 10)
        os.kill(pids[0], signal.SIGKILL)
        _, err = process.communicate(timeout=HANGS_S)
        assert process.returncode == 0, err
        assert digests(folder / "out") == digests(undisturbed.directory)
        client.wait_for_workers(2, timeout=HANGS_S)


@needs_dask
def test_killer_cells_on_dask_are_found_and_marked(undisturbed, folder, cluster, monkeypatch):
    make_task = execution.make_task
    monkeypatch.setattr(execution, "make_task", lambda *args, **kept: KillerTask(**vars(make_task(*args, **kept))))
    chosen = {"seed": 0, "policy": "chunked"}
    cluster_options = {"backend": "dask", "scheduler": cluster.address}
    broken = run_grid("small.toml", out="out", progress=False, settings=chosen, **cluster_options)
    assert set(broken.failed["request_rate_rps"]) == {4.0}
    assert set(broken.failed["block_size"]) == {8}
    assert set(broken.failed["policy"]) == {"chunked"}
    assert broken.failed["error"].str.startswith("KilledWorker: ").all()
    assert (broken.counts["failed"], broken.counts["ok"]) == (1, FEASIBLE // 6 - 1)
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert run_grid("small.toml", out="out", progress=False, retry_failed=True).counts["failed"] == 0
    assert digests(folder / "out") == digests(undisturbed.directory)


@needs_dask
def test_ctrl_c_on_dask_keeps_what_has_ended(undisturbed, folder, cluster):
    process = start(cluster.address)
    wait_until(lambda: len(kept_cells(folder / "out")) > 10)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    kept = len(kept_cells(folder / "out"))
    assert kept < FEASIBLE  # it did not wait for the rest
    assert f"interrupted: {kept} of {CELLS} cells ended" in err
    assert run_grid("small.toml", out="out", progress=False).counts["reused"] == kept
    assert digests(folder / "out") == digests(undisturbed.directory)


@needs_dask
def test_a_dask_scheduler_that_goes_away_stops_the_run_and_costs_nothing(undisturbed, folder, tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("short"))
    try:
        process = start(cluster.address)
        wait_until(lambda: len(kept_cells(folder / "out")) > 10)
        cluster.scheduler.kill()
        _, err = process.communicate(timeout=HANGS_S)
    finally:
        cluster.stop()
    assert process.returncode == 1, err
    assert "Traceback" not in err
    assert re.search(r"stopped: the Dask scheduler at tcp://127\.0\.0\.1:\d+ is gone; \d+ of", err)
    assert err.splitlines()[-1].startswith("go on with: servesweep run small.toml --out out --backend dask")
    kept = len(kept_cells(folder / "out"))
    assert run_grid("small.toml", out="out", progress=False).counts["reused"] == kept > 10
    assert digests(folder / "out") == digests(undisturbed.directory)


@needs_dask
def test_a_dask_scheduler_that_is_not_there_is_an_error_within_seconds(folder, capsys):
    assert clusters.CONNECT_S <= 10
    options = ["--backend", "dask", "--scheduler", "tcp://127.0.0.1:9", "--quiet", "--out", "out"]
    assert command_line(["run", "small.toml", *options]) == 2
    assert "--scheduler tcp://127.0.0.1:9: no Dask scheduler answers: " in capsys.readouterr().err
    run_grid("small.toml", out="out", progress=False, settings={"seed": 0, "n_requests": 5})  # and nothing is locked


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "slurm"}, "must be one of local, dask, ray"),
        ({"backend": "dask"}, "must be given with backend dask"),
        ({"backend": "dask", "scheduler": "tcp://x:1", "workers": 2}, "has no effect with backend dask"),
        ({"scheduler": "tcp://x:1"}, "has no effect with backend local"),
    ],
)
def test_options_of_backends_that_cannot_be(options, words):
    with pytest.raises((ValueError, ConfigError), match=words):
        run_grid("small.toml", out="out", progress=False, **options)


@needs_ray
def test_ray_gives_the_same_bytes_and_finds_killer_cells(undisturbed, folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(FOLDERS))  # for KillerTask
    run = run_grid("small.toml", out="out", progress=False, backend="ray", max_batch_cells=12)
    assert run.counts["ok"] == FEASIBLE
    assert digests(folder / "out") == digests(undisturbed.directory)
    make_task = execution.make_task
    monkeypatch.setattr(execution, "make_task", lambda *args, **kept: KillerTask(**vars(make_task(*args, **kept))))
    broken = run_grid(
        "small.toml", out="other", progress=False, backend="ray", settings={"seed": 0, "policy": "chunked"}
    )
    assert (broken.counts["failed"], broken.counts["ok"]) == (1, FEASIBLE // 6 - 1)
    assert broken.failed["error"].str.startswith("WorkerCrashedError: ").all()
