"""The kinds of serving systems: one row each. What else lists them, their roles or memories derives it from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .. import checks
from .systems import Colocated, DecodeOnly, Disaggregated, PrefillOnly

SystemName = Literal["colocated", "disaggregated", "prefill_only", "decode_only"]


@dataclass(frozen=True)
class SystemKind:
    """A kind of serving system.

    Parameters
    ----------
    name, meaning
        What it is called, and a line about it.
    system
        Its class.
    """

    name: SystemName
    meaning: str
    system: type[Colocated | Disaggregated | PrefillOnly | DecodeOnly]

    @property
    def roles(self) -> tuple[str, ...]:
        """Of the instances that a request meets, in order: colocated, prefill or decode."""
        return self.system.roles

    @property
    def memories(self) -> tuple[str, ...]:
        """KV memories that its instances can have; none where nothing decodes."""
        return self.system.memories

    @property
    def has_policy(self) -> bool:
        """Whether its instances prefill and decode, and so have a batching policy."""
        return "colocated" in self.roles

    @property
    def prefills(self) -> bool:
        """Whether some instances do nothing but prefill."""
        return "prefill" in self.roles

    @property
    def decodes(self) -> bool:
        """Whether requests get all their tokens."""
        return bool({"colocated", "decode"} & set(self.roles))

    @property
    def has_ttft(self) -> bool:
        """Whether requests wait for their first token here."""
        return bool({"colocated", "prefill"} & set(self.roles))


SYSTEMS: dict[str, SystemKind] = checks.by_name(
    (
        SystemKind("colocated", "instances that prefill and decode", Colocated),
        SystemKind(
            "disaggregated",
            "prefill instances that send the KV cache to decode instances over a link",
            Disaggregated,
        ),
        SystemKind("prefill_only", "prefill instances alone: TTFT", PrefillOnly),
        SystemKind("decode_only", "decode instances alone; requests arrive with their KV and first token", DecodeOnly),
    )
)
