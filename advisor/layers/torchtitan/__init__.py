"""torchtitan's layers as operators."""
