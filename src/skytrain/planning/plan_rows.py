"""Offers and purchases as JSON rows, for `skytrain plan --json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .offers import Offer
from .tokens import Purchase


def purchase_rows(bought: Sequence[Purchase]) -> list[dict[str, Any]]:
    """Return what a budget buys on each offer, as JSON rows."""
    return [
        {
            "region": one.offer.region,
            "instance_type": one.offer.instance.type,
            "nodes": one.offer.nodes,
            "market": one.offer.market,
            "tokens": one.tokens,
            "hours": one.estimate.hours,
            "usd": [one.estimate.usd_p10, one.estimate.usd, one.estimate.usd_p90],
        }
        for one in bought
    ]


def offer_rows(offers: Sequence[Offer]) -> list[dict[str, Any]]:
    """Return the table of offers as JSON rows."""
    rows = []
    for offer in offers:
        placement = offer.placement
        estimate = offer.estimate
        price = offer.price
        rows.append({
            "target": offer.seller.name,
            "region": offer.region,
            "instance_type": offer.instance.type,
            "nodes": offer.nodes,
            "market": offer.market,
            "usd_per_hour": [price.usd_per_hour_min, price.usd_per_hour_max] if price else None,
            "mesh": str(placement.mesh) if placement else None,
            "micro_batch": placement.job.micro_batch if placement else None,
            "activation_checkpointing": placement.job.recomputation if placement else None,
            "tokens_per_s": placement.tokens_per_s if placement else None,
            "source": placement.prediction.source if placement else None,
            "memory_bytes": placement.memory.total if placement else None,
            "hours": estimate.hours if estimate else None,
            "interruptions": estimate.interruptions if estimate else None,
            "usd": [estimate.usd_p10, estimate.usd, estimate.usd_p90] if estimate else None,
            "quota": {"code": offer.instance.quota_code(offer.market), "vcpus": offer.quota_vcpus},
            "problem": offer.problem,
        })  # fmt: skip
    return rows
