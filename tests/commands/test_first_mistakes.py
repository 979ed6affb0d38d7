"""What is said where a first try goes wrong: one mistake is told once, with what would have been right."""

import shlex

import pytest
from servesweep.commands.main import command_line
from servesweep.experiment.reader import load_experiment


@pytest.mark.parametrize(
    ("file", "name"),
    [("with spaces.toml", "with-spaces"), ("ä (1).toml", "1-"), ("...toml", "experiment"), ("a-_b.c.toml", "a-_b.c")],
)
def test_any_file_can_be_run_and_the_hint_can_be_pasted(file, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command_line(["init", file]) == 0
    hint = capsys.readouterr().err.strip().partition("next: ")[2]
    assert shlex.split(hint) == ["servesweep", "run", file]
    assert command_line([*shlex.split(hint)[1:], "--dry-run"]) == 0
    assert load_experiment(file).name == name


def test_what_follows_from_a_misspelt_key_is_not_told(tmp_path, capsys):
    file = tmp_path / "a.toml"
    file.write_text(
        '[workload]\nkind = "synthetic"\nn_requests = 5\nprompt = 9\noutput = 9\nrequest_rate_rps = 1\n'
        '[instance]\nmodel = "llama-3.1-8b"\nchip = "h100-sxm"\n[system]\nn_instance = 4\nrouter = "round_robin"\n'
    )
    assert command_line(["run", str(file), "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert 'system.n_instance: unknown key; did you mean "n_instances"?' in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(("given", "right"), [("ttft=200", "ttft:200"), ("tpot200", "tpot:200"), ("200", "ttft:200")])
def test_limits_in_another_form(given, right, capsys):
    assert command_line(["goodput", "quickstart", "--slo", given]) == 2
    assert f"slo {given!r}: must be NAME:MS, as in {right}" in capsys.readouterr().err


def test_known_keys_are_listed_once(capsys):
    assert command_line(["run", "quickstart", "--set", "polcy=mixed"]) == 2
    known = capsys.readouterr().err.partition("Known: ")[2].partition(", ... and")[0].split(", ")
    assert known[0] == "policy"
    assert len(known) == len(set(known)) > 10
