"""Settings of `skytrain plan --best`."""

from __future__ import annotations

from .declare import EXECUTION, setting, settings
from .kinds import Count


@settings
class PlanConfig:
    """What the best model for a budget is judged by."""

    serve_tokens: Count | None = setting(
        EXECUTION,
        "Tokens that the model will serve, prompts and answers: `budget.usd` then pays for training and serving; "
        "null: only training.",
    )
    most_parameters: Count | None = setting(EXECUTION, "The largest model to consider, such as 1B; null: any.")
    data_tokens: Count | None = setting(
        EXECUTION, "Distinct tokens that the data has; further ones are repetitions. null: as known of the data set."
    )
    law: str = setting(EXECUTION, "The law of the loss that decides; `skytrain plan --best` lists them.")
