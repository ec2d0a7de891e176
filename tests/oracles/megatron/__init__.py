"""Memory oracle: the installed Megatron Core, run on fake tensors without a GPU."""

from harness.backends.megatron_core.case import Activation, CoreAttention
from harness.backends.megatron_core.case import MegatronCase as OracleCase
from harness.rehearsal.fake.peak import activation_peak, trace_peak
from harness.rehearsal.fake.saved import saved_bytes, saved_bytes_per_layer
from harness.rehearsal.fake.timeline import PeakTrace, StorageRecord

__all__ = [
    "Activation",
    "CoreAttention",
    "OracleCase",
    "PeakTrace",
    "StorageRecord",
    "activation_peak",
    "saved_bytes",
    "saved_bytes_per_layer",
    "trace_peak",
]
