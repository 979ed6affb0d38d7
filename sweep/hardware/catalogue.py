"""Models, chips and links by name, from the TOML files in configs/, where each entry has its source."""

from functools import cache
from typing import Any

from .. import checks
from ..messages import nearest
from .parts import Chip, Link, Model

_MODEL_FIELDS = (
    *("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab"),
    *("tied_embeddings", "gated_mlp"),
)
_CHIP_FIELDS = ("bf16_flops", "fp8_flops", "mem_bytes_per_s", "mem_bytes")
_USUAL = "nvlink4"  # the link of a StepModel, if none is given
_LINK_FIELDS = ("alpha_s", "bytes_per_s")


def model(name: str) -> Model:
    """The model of this name in the catalogue (configs/models.toml).

    Parameters
    ----------
    name
        Such as "llama-3.1-8b"; `model_names` has all.

    Raises
    ------
    ValueError
        For a name that is unknown, or known but not modelled.
    """
    return _model(checks.text("model", name))


def chip(name: str) -> Chip:
    """The chip of this name in the catalogue (configs/chips.toml).

    Parameters
    ----------
    name
        Such as "h100-sxm"; `chip_names` has all.

    Raises
    ------
    ValueError
        For a name that is unknown.
    """
    return _chip(checks.text("chip", name))


def link(name: str) -> Link:
    """The link of this name in the catalogue (configs/links.toml).

    Parameters
    ----------
    name
        Such as "ib-ndr"; `link_names` has all.

    Raises
    ------
    ValueError
        For a name that is unknown.
    """
    return _link(checks.text("link", name))


def model_names() -> list[str]:
    """Names that `model` knows, in the order of configs/models.toml."""
    return list(_file("models")["models"])


def chip_names() -> list[str]:
    """Names that `chip` knows, in the order of configs/chips.toml."""
    return list(_file("chips")["chips"])


def printed_gb(name: str) -> int:
    """The GB of memory that the vendor of a chip prints, which is what it is sold as; its `mem_bytes` say what there
    is."""
    return int(_file("chips")["chips"][name]["mem_printed_gb"])


def link_names() -> list[str]:
    """Names that `link` knows, in the order of configs/links.toml."""
    return list(_file("links")["links"])


@cache
def _model(name: str) -> Model:
    reason = _file("models")["not_modelled"].get(name)
    if reason is not None:
        raise ValueError(f"model={name!r}: is not modelled, because it {reason}; known: {', '.join(model_names())}")
    return Model(name, **_entry("model", name, _MODEL_FIELDS))


@cache
def _chip(name: str) -> Chip:
    return Chip(name, **_entry("chip", name, _CHIP_FIELDS))


@cache
def _link(name: str) -> Link:
    return Link(name, **_entry("link", name, _LINK_FIELDS))


def _entry(kind: str, name: str, fields: tuple[str, ...]) -> dict[str, Any]:
    entries = _file(f"{kind}s")[f"{kind}s"]
    if name not in entries:
        raise ValueError(f"{kind}={name!r}: is unknown{nearest(name, entries, _USUAL)}")
    return {field: entries[name][field] for field in fields}


def chip_file(name: str) -> dict[str, Any]:
    """A file of facts of chips in configs/, as it is."""
    return _file(name)


@cache
def _file(name: str) -> dict[str, Any]:
    # Read when first asked for: `import servesweep` pays for neither the parser nor the files.
    import tomllib
    from importlib.resources import files

    return tomllib.loads(files("servesweep.configs").joinpath(f"{name}.toml").read_text(encoding="utf-8"))
