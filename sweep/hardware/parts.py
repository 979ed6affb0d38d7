"""What an instance is made of: a model, a chip, and the links between chips. Formulas: docs/models.md."""

from dataclasses import dataclass

from .. import checks


@dataclass(frozen=True)
class Model:
    """A dense decoder with grouped-query attention.

    Biases, query-key norms and learned positions are not counted; they are below 0.1 % of the weights of every model of
    the catalogue.

    Parameters
    ----------
    name
        For tables and messages.
    n_layers
        Layers of attention and MLP.
    d_model, head_dim, d_ff, vocab
        Widths: of a token's state, of a head, of the MLP, and the number of different tokens.
    n_heads, n_kv_heads
        Heads of queries, and of keys and values; as many of both is multi-head attention.
    tied_embeddings
        The output layer is the embedding table itself.
    gated_mlp
        The MLP has three matrices, otherwise two.

    Raises
    ------
    ValueError
        For a count that is not an integer of at least 1, or more KV heads than heads.
    """

    name: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    vocab: int
    tied_embeddings: bool = False
    gated_mlp: bool = True

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        for field in ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab"):
            object.__setattr__(self, field, checks.whole(field, getattr(self, field), 1))
        if self.n_kv_heads > self.n_heads:
            raise ValueError(f"n_kv_heads={self.n_kv_heads}: must be at most n_heads={self.n_heads}")
        for field in ("tied_embeddings", "gated_mlp"):
            if not isinstance(getattr(self, field), bool):
                raise ValueError(f"{field}={getattr(self, field)!r}: must be True or False")

    @property
    def _q_width(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def _kv_width(self) -> int:
        return self.n_kv_heads * self.head_dim

    def matmul_params(self) -> int:
        """Weights that multiply a token in a forward pass, those of the output layer included."""
        attention = 2 * self.d_model * self._q_width + 2 * self.d_model * self._kv_width
        mlp = (3 if self.gated_mlp else 2) * self.d_model * self.d_ff
        return self.n_layers * (attention + mlp) + self.d_model * self.vocab

    def n_params(self) -> int:
        """All weights: `matmul_params`, the embedding table unless it is tied, and two norms a layer and a last one."""
        embedding = 0 if self.tied_embeddings else self.vocab * self.d_model
        return self.matmul_params() + embedding + (2 * self.n_layers + 1) * self.d_model

    def linear_flops_per_token(self) -> int:
        """FLOPs of one token in the matrices: a multiplication and an addition a weight."""
        return 2 * self.matmul_params()

    def attention_flops_per_context_token(self) -> int:
        """FLOPs of one token attending to one token: scores and weighted values, in all layers."""
        return 4 * self.n_layers * self._q_width

    def kv_bytes_per_token(self, kv_bytes: float = 2.0) -> float:
        """Bytes of one token's keys and values in all layers, at `kv_bytes` a number."""
        return 2 * self.n_layers * self._kv_width * checks.positive("kv_bytes", kv_bytes)


@dataclass(frozen=True)
class Chip:
    """An accelerator.

    Parameters
    ----------
    name
        For tables and messages.
    bf16_flops, fp8_flops
        Dense peaks in FLOP/s. `fp8_flops` = 0: the chip has no fp8, and bf16 is used in its place.
    mem_bytes_per_s
        Memory bandwidth in bytes/s.
    mem_bytes
        Memory in bytes.

    Raises
    ------
    ValueError
        For a figure that is not positive and finite (0 is allowed for `fp8_flops`).
    """

    name: str
    bf16_flops: float
    fp8_flops: float
    mem_bytes_per_s: float
    mem_bytes: float

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        for field in ("bf16_flops", "mem_bytes_per_s", "mem_bytes"):
            object.__setattr__(self, field, checks.positive(field, getattr(self, field)))
        object.__setattr__(self, "fp8_flops", checks.not_negative("fp8_flops", self.fp8_flops))


@dataclass(frozen=True)
class Link:
    """A link between two chips.

    Parameters
    ----------
    name
        For tables and messages.
    alpha_s
        Seconds that an empty message takes.
    bytes_per_s
        Bandwidth in one direction, in bytes/s.

    Raises
    ------
    ValueError
        For a negative or infinite latency, or a bandwidth that is not positive and finite.
    """

    name: str
    alpha_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        object.__setattr__(self, "alpha_s", checks.not_negative("alpha_s", self.alpha_s))
        object.__setattr__(self, "bytes_per_s", checks.positive("bytes_per_s", self.bytes_per_s))


# The defaults; the catalogue holds the same figures. The latencies are assumed, not measured: docs/models.md.
NVLINK_4 = Link("nvlink4", 1e-6, 450e9)
IB_NDR = Link("ib-ndr", 2e-6, 50e9)
