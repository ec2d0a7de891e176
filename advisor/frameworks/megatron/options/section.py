"""A section of Megatron's options."""

from typing import ClassVar

from advisor.frameworks.option import Options


class Section(Options):
    """Its rows are the options that are modelled or read by rules; configs/options has the rest."""

    schema: ClassVar[str] = "megatron"
