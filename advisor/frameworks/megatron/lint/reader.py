"""Megatron-LM, Megatron Bridge and NeMo: their configurations, read and checked."""

import re
from collections.abc import Iterator
from typing import Final

from advisor.base.rule import Level
from advisor.frameworks.megatron.lint import job_values
from advisor.frameworks.megatron.lint.checks import findings, launched, lent_values, understood
from advisor.frameworks.megatron.lint.command_line import read_command
from advisor.frameworks.megatron.lint.option_values import said_options, untaken_options
from advisor.frameworks.megatron.lint.python_config import read_ways
from advisor.frameworks.megatron.lint.read_rules import put_environment
from advisor.frameworks.megatron.lint.settings import ReadSettings
from advisor.frameworks.megatron.lint.spelled_model import model_of_shape, shape_values
from advisor.frameworks.megatron.lint.yaml_config import read_tree
from advisor.frameworks.megatron.options.table import option_of_field
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.newer_releases import with_newest
from advisor.reading.document_tree import Tree
from advisor.reading.python_source import PythonSource
from advisor.reading.read_configuration import Checked, Document, ReadConfiguration, Untaken

_OF_MODEL: Final = re.compile(r"(?:^|[+.])model\.(?:config\.)?\w+$")
"""Fields of a recipe's model; those that nobody knows may be the provider's own."""


class MegatronReader:
    """Options, overrides, YAML and Python recipes."""

    def read(self, document: Document) -> Iterator[ReadConfiguration]:
        """The configurations of Megatron in a document."""
        if isinstance(document, PythonSource):
            for read, way in read_ways(document):
                yield configuration_of(read, way.branch)
            return
        one = read_tree(document) if isinstance(document, Tree) else read_command(document)
        if one is not None:
            yield configuration_of(one)

    def check(self, configuration: ReadConfiguration, version: str | None) -> Checked:
        """The rules of the release that fire."""
        read: ReadSettings = configuration.settings
        if configuration.world_size and not read.lent:
            read.given.values["world_size"] = configuration.world_size
        asked, framework = version or configuration.version, configuration.framework
        revision = resolve_revision(framework, asked)
        recipe = configuration.lent
        lent, certain = lent_values(read, revision, recipe), recipe is not None and recipe.certain
        settings = launched(read, revision, lent)
        return Checked(
            configuration=configuration,
            label=with_newest(revision.label, framework, asked, revision.version),
            understood=understood(settings)
            if read.is_complete or configuration.recompute_at or certain
            else "recompute is not said here",
            findings=findings(read, revision, lent, is_certain=certain),
            release=revision,
            settings=settings,
        )

    def merged(self, command: ReadConfiguration, file: ReadConfiguration) -> None:
        """Their values are read apart."""

    def model(self, configuration: ReadConfiguration) -> str:
        """The model of the recipe, or the preset of the shape that the options spell out."""
        return configuration.model or model_of_shape(configuration.settings, configuration.shape)


def configuration_of(read: ReadSettings, branch: tuple[str, ...] = ()) -> ReadConfiguration:
    """What is read of one, as fields of ours."""
    put_environment(read)
    settings, said = read.given.settings(), said_options(read)
    unknown = tuple(job_values.unknown_values(read))
    at = job_values.recompute_values(read)
    tells_recompute = at or read.is_complete  # else it is the recipe's
    tells_recompute = tells_recompute and all(one.path != job_values.RECOMPUTE for one in unknown)
    values = job_values.read_values(read, settings, said)
    foreign = (
        Untaken.foreign(one)
        for name, one in read.loose.items()
        if _OF_MODEL.search(one.written) and option_of_field(name) is None
    )
    return ReadConfiguration(
        framework=read.given.framework,
        version=read.given.version,
        place=read.place,
        branch=branch,
        values=values,
        shape=shape_values(read, said),
        recompute=job_values.recompute_spec(settings) if tells_recompute else None,
        recompute_at=at,
        model=read.model,
        settings=read,
        unread=read.unread,
        recipe=() if read.is_complete else read.texts,
        untaken=(
            *(*untaken_options(said), *read.untaken),
            *(one for one in foreign if one.level is Level.WARNING),
        ),
        unknown=unknown,
        num_gpus=job_values.num_gpus(read),
        num_microbatches=job_values.num_microbatches(read),
        layers_per_chunk=None
        if job_values.CHUNKS in values
        else read.given.layers_per_virtual_stage,
        whole=read.has_defaults,
    )
