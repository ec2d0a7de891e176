"""A section of Megatron's options."""

from advisor.frameworks.option import Options


class Section(Options):
    """Its rows are the options that are modelled or read by rules; configs/options has the rest."""

    schema = "megatron"
