"""A small experiment, changed key by key, and what is found wrong with it."""

import pytest
from servesweep.experiment.reader import load_experiment
from servesweep.experiment.tables import ConfigError

SMALL = {
    "workload": {"kind": "synthetic", "prompt": 100, "output": 10, "n_requests": 20, "request_rate_rps": [1, 2]},
    "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm"},
    "scheduler": {"policy": ["mixed", "chunked"], "block_size": 16},
}


def changed(**tables):
    """SMALL with keys replaced; None removes a key."""
    result = {name: dict(table) for name, table in SMALL.items()}
    for name, keys in tables.items():
        table = result.setdefault(name, {})
        for key, value in keys.items():
            table[key] = value
            if value is None:
                del table[key]
    return result


def problems(config, **options):
    with pytest.raises(ConfigError) as caught:
        load_experiment(config, **options)
    return list(caught.value.problems)


def problem(config, **options):
    """The only problem."""
    (text,) = problems(config, **options)
    return text
