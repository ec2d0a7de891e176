"""Memory oracle: the installed Megatron Core, run on fake tensors without a GPU.

`OracleCase` describes a run, `saved_bytes_per_layer` counts what autograd keeps of one layer and
`activation_peak` / `trace_peak` run the real pipeline schedule of one rank. Nothing here knows the
advisor.
"""

from .case import Activation, CoreAttention, OracleCase
from .peak import activation_peak, trace_peak
from .saved import saved_bytes_per_layer
from .timeline import PeakTrace, StorageRecord

__all__ = [
    "Activation",
    "CoreAttention",
    "OracleCase",
    "PeakTrace",
    "StorageRecord",
    "activation_peak",
    "saved_bytes_per_layer",
    "trace_peak",
]
