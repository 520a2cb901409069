"""The settings that can be combined: one table of rules over a configuration, its mesh and, if known, its device.

`config` reads it when settings are composed, `train` before workers start and again on the device, `parallel=auto` and
`plan` when they choose a mesh, and the documentation prints it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ConfigError
from .features import FEATURE_RULES
from .kernels import KERNEL_RULES, fused_mesh_problem, fused_model_problem, fused_problem, fused_settings_problem
from .rule import Device, HFShape, Rule, Setup
from .sizes import JOB_SIZE_RULES, MODEL_SIZE_RULES

__all__ = [
    "COMBINATION_RULES",
    "MODEL_SIZE_RULES",
    "RULES",
    "Device",
    "HFShape",
    "Rule",
    "Setup",
    "broken_rule",
    "capability_table",
    "check_setup",
    "fused_mesh_problem",
    "fused_model_problem",
    "fused_problem",
    "fused_settings_problem",
]

COMBINATION_RULES = (*FEATURE_RULES, *KERNEL_RULES)
RULES = (*JOB_SIZE_RULES[:1], *COMBINATION_RULES, *MODEL_SIZE_RULES, *JOB_SIZE_RULES[1:])


def broken_rule(setup: Setup, rules: tuple[Rule, ...] = RULES) -> tuple[Rule, str] | None:
    """Return the first rule that the setup breaks and what is wrong, or None for a setup that works."""
    return next(((rule, problem) for rule in rules if (problem := rule.problem(setup))), None)


def check_setup(setup: Setup, rules: tuple[Rule, ...] = RULES, origins: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError for the first rule that the setup breaks."""
    if broken := broken_rule(setup, rules):
        rule, problem = broken
        raise ConfigError(rule.key, problem, origin=(origins or {}).get(rule.key), hint=rule.fix)


def capability_table() -> str:
    """Return the rules as a Markdown table, for the documentation."""
    rows = "".join(f"| `{rule.key}` | {rule.excludes} | {rule.fix} |\n" for rule in RULES)
    return f"| setting | does not go with | instead |\n| --- | --- | --- |\n{rows}"
