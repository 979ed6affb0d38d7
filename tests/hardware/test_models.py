"""Models, chips and links: parameter counts against published ones, the catalogue, and what is refused."""

import tomllib
from importlib.resources import files

import pytest
from servesweep.experiment.names import listed
from servesweep.hardware import catalogue
from servesweep.hardware.parts import IB_NDR, NVLINK_4, Chip, Link, Model

# Weights that Model.n_params leaves out, as a share of all: 0.0993 % in opt-13b (biases and positions) is the most, and
# 0.005 % in gemma-3-4b (norms) the most of the others.
LEFT_OUT_AT_MOST = 1e-3

LLAMA_8B = {
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "n_kv_heads": 8,
    "head_dim": 128,
    "d_ff": 14336,
    "vocab": 128256,
}


def entries(kind):
    return tomllib.loads(files("servesweep.configs").joinpath(f"{kind}.toml").read_text(encoding="utf-8"))[kind]


def left_out(entry):
    """Weights that the formula doesn't count, from the flags of a catalogue entry."""
    layers, d = entry["n_layers"], entry["d_model"]
    q, kv = entry["n_heads"] * entry["head_dim"], entry["n_kv_heads"] * entry["head_dim"]
    extra = 0
    if entry.get("qkv_bias"):
        extra += layers * (q + 2 * kv)
    if entry.get("qk_norm"):
        extra += layers * 2 * entry["head_dim"]
    extra += layers * (entry.get("norms_per_layer", 2) - 2) * d
    if "learned_positions" in entry:  # OPT, which has a bias in every matrix (but the output layer) and every norm too
        extra += entry["learned_positions"] * d
        extra += layers * (q + 2 * kv + d + entry["d_ff"] + d) + (2 * layers + 1) * d
    return extra


@pytest.mark.parametrize("name", catalogue.model_names())
def test_parameters_are_the_published_count(name):
    entry = entries("models")[name]
    exact = entry.get("params_computed", entry["params_published"])  # OPT has nominal sizes only
    counted = catalogue.model(name).n_params()
    assert counted + left_out(entry) == exact
    assert 0 <= exact - counted <= LEFT_OUT_AT_MOST * exact


@pytest.mark.parametrize("name", catalogue.model_names())
def test_nominal_sizes_are_close(name):
    entry = entries("models")[name]
    assert abs(catalogue.model(name).n_params() / entry["params_published"] - 1) < 0.015


def test_formulas_by_hand():
    tiny = Model("tiny", n_layers=2, d_model=8, n_heads=4, n_kv_heads=2, head_dim=3, d_ff=16, vocab=10)
    layer = 8 * 12 + 12 * 8 + 2 * (8 * 6) + 3 * 8 * 16  # q, o; k and v; gate, up, down
    assert tiny.matmul_params() == 2 * layer + 8 * 10
    assert tiny.n_params() == 2 * layer + 2 * 8 * 10 + 5 * 8
    assert tiny.linear_flops_per_token() == 2 * tiny.matmul_params()
    assert tiny.attention_flops_per_context_token() == 4 * 2 * 12
    assert tiny.kv_bytes_per_token() == 2 * 2 * 6 * 2
    assert tiny.kv_bytes_per_token(1) == 2 * 2 * 6
    tied = Model("tied", 2, 8, 4, 2, 3, 16, 10, tied_embeddings=True)
    assert tied.n_params() == tiny.n_params() - 8 * 10
    plain = Model("plain", 2, 8, 4, 2, 3, 16, 10, gated_mlp=False)
    assert plain.matmul_params() == tiny.matmul_params() - 2 * 8 * 16


def test_catalogue_is_complete_and_cached():
    assert len(catalogue.model_names()) == 28
    assert len(catalogue.chip_names()) == 27
    assert len(catalogue.link_names()) == 14
    for make, names in (
        (catalogue.model, catalogue.model_names()),
        (catalogue.chip, catalogue.chip_names()),
        (catalogue.link, catalogue.link_names()),
    ):
        for name in names:
            assert make(name).name == name
            assert make(name) is make(name)


def test_every_entry_has_a_source():
    for kind in ("models", "chips", "links"):
        for name, entry in entries(kind).items():
            assert entry["source"], name
    assert {entry["quality"] for entry in entries("chips").values()} == {"A", "B", "C"}
    assert all(entry["mem_source"] for entry in entries("chips").values())
    assert all(entry["alpha_assumed"] for entry in entries("links").values())


def test_known_figures():
    assert catalogue.model("llama-3.1-8b") == Model("llama-3.1-8b", **LLAMA_8B)
    assert catalogue.chip("h100-sxm") == Chip("h100-sxm", 989.4e12, 1978.9e12, 3350e9, 80 * 2**30)
    assert catalogue.chip("a100-80-sxm").fp8_flops == 0
    assert catalogue.link("nvlink4") == NVLINK_4 == Link("nvlink4", 1e-6, 450e9)
    assert catalogue.link("ib-ndr") == IB_NDR == Link("ib-ndr", 2e-6, 50e9)


@pytest.mark.parametrize(
    ("make", "name", "closest", "known"),
    [
        (catalogue.model, "Llama-3.1-8B", "llama-3.1-8b", "phi-4"),
        (catalogue.model, "qwen-2.5-7b", "qwen2.5-7b", "phi-4"),
        (catalogue.chip, "h100", "h100-sxm", "tpu-v6e"),
        (catalogue.link, "nvlink-4", "nvlink4", "roce-400"),
        (catalogue.link, "nvlink", "nvlink4", "roce-400"),  # the default, of four that are as close
        (catalogue.link, "nvlink-5", "nvlink5", "roce-400"),
    ],
)
def test_unknown_name_gets_the_closest_and_the_known(make, name, closest, known):
    with pytest.raises(ValueError, match="unknown") as caught:
        make(name)
    message = str(caught.value)
    assert f"{make.__name__}={name!r}" in message
    assert f'did you mean "{closest}"' in message
    assert known in message.split("nown:")[1]


@pytest.mark.parametrize("make", ["model", "chip", "link"])
@pytest.mark.parametrize("name", [["llama-3.1-8b"], {}, None, 3, ""])
def test_a_name_that_is_no_string(make, name):
    with pytest.raises(ValueError, match=f"{make}=.*: must be a string"):
        getattr(catalogue, make)(name)


def test_nothing_close_is_not_guessed():
    with pytest.raises(ValueError, match=r"link='zzz': is unknown; known: nvlink2"):
        catalogue.link("zzz")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("mixtral-8x7b", "8 experts"), ("deepseek-v3", "latent attention"), ("gpt-oss-120b", "128 experts")],
)
def test_other_architectures_are_refused_with_the_reason(name, reason):
    with pytest.raises(ValueError, match=f"model='{name}': is not modelled.*{reason}.*known: llama-3.1-8b"):
        catalogue.model(name)
    assert name not in catalogue.model_names()


@pytest.mark.parametrize("field", sorted(LLAMA_8B))
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8", None])
def test_model_counts_are_positive_integers(field, value):
    with pytest.raises(ValueError, match=f"{field}={value!r}: must be an integer of at least 1"):
        Model("m", **(LLAMA_8B | {field: value}))


def test_model_refuses_impossible_shapes():
    with pytest.raises(ValueError, match="n_kv_heads=64: must be at most n_heads=32"):
        Model("m", **(LLAMA_8B | {"n_kv_heads": 64}))
    with pytest.raises(ValueError, match="tied_embeddings=1: must be True or False"):
        Model("m", **LLAMA_8B, tied_embeddings=1)
    with pytest.raises(ValueError, match="name=''"):
        Model("", **LLAMA_8B)
    with pytest.raises(ValueError, match="kv_bytes=0: must be a positive finite number"):
        Model("m", **LLAMA_8B).kv_bytes_per_token(0)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), True, "1e15"])
@pytest.mark.parametrize("field", ["bf16_flops", "mem_bytes_per_s", "mem_bytes"])
def test_chip_figures_are_positive(field, value):
    figures = {"bf16_flops": 1e15, "fp8_flops": 2e15, "mem_bytes_per_s": 1e12, "mem_bytes": 8e10}
    with pytest.raises(ValueError, match=f"{field}={value!r}: must be a positive finite number"):
        Chip("c", **(figures | {field: value}))


def test_chip_without_fp8_and_links():
    assert Chip("c", 1e15, 0, 1e12, 8e10).fp8_flops == 0
    assert Link("ideal", 0, 1e9).alpha_s == 0
    with pytest.raises(ValueError, match=r"fp8_flops=-1: must be a finite number of at least 0"):
        Chip("c", 1e15, -1, 1e12, 8e10)
    with pytest.raises(ValueError, match=r"alpha_s=-1e-06: must be a finite number of at least 0"):
        Link("l", -1e-6, 1e9)
    with pytest.raises(ValueError, match="bytes_per_s=0: must be a positive finite number"):
        Link("l", 1e-6, 0)


def test_memory_is_listed_as_it_is_sold_and_in_bytes():
    """The printed GB lie between those of 10^9 and those of 2^30 bytes."""
    lines = listed()["chips"]
    assert " 80 GB (85.9e9 bytes) at 3.35 TB/s" in lines["h100-sxm"]
    assert " 80 GB (80.0e9 bytes) at 3.35 TB/s" in lines["h800-sxm"]
    for name in catalogue.chip_names():
        sold = catalogue.printed_gb(name)
        assert sold * 10**9 <= catalogue.chip(name).mem_bytes <= sold * 2**30
