"""Optimizer state on disk: slot names are torch's, whoever writes them.

Arrays are named `<slot>/<canonical parameter name>`. What is not an array stands in the manifest, in this layout on both frameworks:

    {"type": "AdamW", "groups": [{"params": [names], "options": {"lr": 0.001, "betas": [0.9, 0.999]}}], "steps": {name: 10}}
"""

from __future__ import annotations

CANONICAL_SLOTS = frozenset(
    {
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "exp_inf",
        "momentum_buffer",
        "square_avg",
        "grad_avg",
        "sum",
        "acc_delta",
        "exp_avg_sq_row",
        "exp_avg_sq_col",
    }
)
"""torch's slot names that both frameworks know."""

FOREIGN_PREFIXES = ("optax/", "torch/")
"""Slots without a counterpart are kept under the name of their own library."""


def slot_name(slot: str, parameter: str) -> str:
    """The name of one array.

    >>> slot_name("exp_avg", "fc1.weight")
    'exp_avg/fc1.weight'
    """
    return f"{slot}/{parameter}"


def split_slot_name(name: str) -> tuple[str, str]:
    """The inverse of `slot_name`; a foreign slot keeps its prefix.

    >>> split_slot_name("exp_avg/fc1.weight"), split_slot_name("torch/mu_product/fc1.weight")
    (('exp_avg', 'fc1.weight'), ('torch/mu_product', 'fc1.weight'))
    """
    slot, _, parameter = name.rpartition("/")
    return slot, parameter
