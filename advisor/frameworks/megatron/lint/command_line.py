"""Reads Megatron-LM options and Megatron Bridge overrides out of flags or a shell script."""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from advisor.frameworks.megatron.lint.given import KINDS, RENAMED, Given, Kind, field_of
from advisor.frameworks.megatron.lint.performance import is_performance_script, put_script_option
from advisor.frameworks.megatron.lint.yaml_config import (
    MIXED_PRECISION,
    NEMO_KEYS,
    put_mixed_precision,
)
from advisor.frameworks.names import Framework

_PER_STAGE: Final = "--num-layers-per-virtual-pipeline-stage"
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})")
_OVERRIDE: Final = re.compile(
    r"\+{0,2}(?:recipe\.|training\.)?"
    r"(model\.config|model|trainer\.strategy|mixed_precision)(?:\.(\w+))?=(.*)",
    re.DOTALL,
)
_OF_NEMO_2: Final = ("model.config", "trainer.strategy")
_SHORTHAND: Final = "--recompute-activations"
_PUNCTUATION: Final = frozenset("();|&<>")


def read_command_line(text: str) -> Given:
    """Options of a command line or shell script: comments, continuations, arrays and variables
    that the script itself sets are understood; options of no interest are skipped."""
    return read_tokens(tokens(text))


def tokens(text: str) -> list[str]:
    """Words of a shell text after quotes, comments, assignments and known variables.

    >>> tokens("N=4\\nrun.py --recompute-num-layers $N  # four")
    ['run.py', '--recompute-num-layers', '4']
    """
    variables: dict[str, str] = {}
    return list(_expand(text, variables, depth=0))


def _expand(text: str, variables: dict[str, str], depth: int) -> Iterator[str]:
    joined = _COMMENT.sub("", text).replace("\\\r\n", " ").replace("\\\n", " ")
    for word in _split(joined):
        if set(word) <= _PUNCTUATION:
            continue
        value = _VARIABLE.sub(lambda match: _value(match, variables), word)
        assignment = _ASSIGNMENT.fullmatch(value)
        if assignment and not value.startswith("-"):
            variables[assignment.group(1)] = assignment.group(2)
            value = assignment.group(2) if " " in assignment.group(2).strip() else value
        # A quoted list of options, OPTIONS="--a 1 --b 2", is one word to the shell's lexer.
        if depth < 3 and len(value.split()) > 1 and "-" in value:
            yield from _expand(value, variables, depth + 1)
        elif not assignment or "." in value.partition("=")[0] or value.startswith("mixed_"):
            yield value


def _split(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();|&<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:  # an unbalanced quote: take the words as they stand
        return [word.strip("\"'") for word in text.split()]


def _value(match: re.Match[str], variables: dict[str, str]) -> str:
    name = match.group(1) or match.group(2)
    known = variables.get(name, match.group(3))
    return match.group(0) if known is None else known


def read_tokens(words: Sequence[str]) -> Given:
    """Options among already split words."""
    given = Given()
    script = is_performance_script(words)
    position = 0
    while position < len(words):
        option, equals, inline = words[position].partition("=")
        position += 1
        override = _OVERRIDE.fullmatch(words[position - 1])
        if override:
            _put_override(given, override)
            continue
        following = [inline] if equals else list(_arguments(words[position:]))
        if script:
            put_script_option(given, option, following)
            continue
        if option == _PER_STAGE and following and following[0].isdigit():
            given.layers_per_virtual_stage = int(following[0])
        name = field_of(option)
        if name:
            given.spellings.add(option)
            _put_option(given, name, option, following)
    return given


def _arguments(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if word.startswith("-") and not word.lstrip("-").isdigit():
            return
        yield word


def _put_option(given: Given, name: str, option: str, following: list[str]) -> None:
    kind = KINDS[name]
    if kind is Kind.SWITCH:
        given.put(name, True, option)
        if following and option.startswith(_SHORTHAND):  # the words a reader may put behind it
            given.stray.append(f"{option} {following[0]}")
    elif kind is Kind.LIST:
        given.put(name, " ".join(following) if "$" in "".join(following) else following, option)
    elif following:
        given.put(name, following[0], option)


def _put_override(given: Given, override: re.Match[str]) -> None:
    """``model.FIELD=VALUE`` or ``mixed_precision=NAME`` of Megatron Bridge, ``model.config.FIELD``
    of NeMo 2, ``model.activations_checkpoint_…`` of NeMo 1."""
    section, name, value = override.groups()
    if section in _OF_NEMO_2:
        given.framework, given.version = Framework.NEMO, "2"
    elif (name or "").startswith(NEMO_KEYS):
        given.framework, given.version = Framework.NEMO, "1"
    elif given.framework != Framework.NEMO:
        given.framework = Framework.MEGATRON_BRIDGE
    if section == MIXED_PRECISION and name is None:
        put_mixed_precision(given, value)
        return
    name = RENAMED.get(name or "", name or "")
    if section != MIXED_PRECISION and name in KINDS:
        given.put(name, value, f"{section}.{name}")
