"""Memory oracle: the installed Megatron Core, run on fake tensors without a GPU."""

from advisor.models.options import Activation
from harness.backends.megatron_core.case import CoreAttention
from harness.backends.megatron_core.case import MegatronCase as OracleCase
from harness.backends.megatron_core.fake.saved import saved_bytes_per_layer, saved_rows

from ..recorded import measured
from . import graph_inputs, peak

__all__ = [
    "Activation",
    "CoreAttention",
    "OracleCase",
    "activation_peak",
    "graph_input_bytes",
    "peak",
    "rows_of",
    "saved_bytes",
    "saved_bytes_of_a_layer",
    "saved_bytes_per_layer",
]


def activation_peak(case: OracleCase, stage: int) -> int:
    """Of peak.py, or as it was recorded."""
    (found,) = measured(
        "activation_peak", case, stage, by=lambda: (peak.activation_peak(case, stage),)
    )
    return found


def graph_input_bytes(case: OracleCase, stage: int) -> int:
    """Of graph_inputs.py, or as it was recorded."""
    (found,) = measured(
        "graph_input_bytes", case, stage, by=lambda: (graph_inputs.graph_input_bytes(case, stage),)
    )
    return found


def saved_bytes(case: OracleCase) -> int:
    """Bytes that one forward pass of the whole model saves, or as they were recorded."""
    (found,) = measured(
        "saved_bytes", case, by=lambda: (sum(row.nbytes for row in saved_rows(case)),)
    )
    return found


def saved_bytes_of_a_layer(case: OracleCase) -> int:
    """The total of `saved_bytes_per_layer`, or as it was recorded."""
    (found,) = measured(
        "saved_bytes_of_a_layer", case, by=lambda: (saved_bytes_per_layer(case)[0],)
    )
    return found


def rows_of(case: OracleCase) -> str:
    """What one layer keeps, row by row, for a message."""
    return "\n".join(map(str, saved_bytes_per_layer(case)[1]))
