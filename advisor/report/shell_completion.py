"""A script that completes a command in bash, zsh or fish, made of what the command takes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from shlex import quote
from typing import Final

from advisor.report.command_help import Command, Flag, Kind

FILES: Final = "@files"
FOLDERS: Final = "@folders"
GPUS: Final = "@gpus"
NOTHING: Final = "@nothing"
"""Values that the shell looks up itself, or that nobody knows; behind GPUS stand the types, which
follow ``COUNTx``."""
Table = Mapping[tuple[str, str], Sequence[str]]
"""(subcommand, what stands before) -> values. Before: a flag, ``KEY=``, or nothing for the words
and flags that the subcommand itself takes."""


class Shell(StrEnum):
    """A shell that has a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_script(program: str, shell: Shell, table: Table) -> str:
    """The script, to be read by the shell when it starts."""
    if shell is Shell.FISH:
        return _FISH.format(program=program, name=_name(program), cases=_cases(table, _fish_case))
    text = _BASH.format(program=program, name=_name(program), cases=_cases(table, _bash_case))
    return (_ZSH if shell is Shell.ZSH else "") + text


def flag_values(
    subcommand: str, command: Command, values: Callable[[Flag], Sequence[str]]
) -> dict[tuple[str, str], Sequence[str]]:
    """The part of a Table that the flags of a command make; `values`: what stands behind one."""
    found: dict[tuple[str, str], Sequence[str]] = {}
    for flag in command.flags:
        found |= {(subcommand, name): values(flag) for name in flag.names if flag.value}
    return found


def paths(flag: Flag) -> Sequence[str]:
    """What the shell offers for a flag that takes a path; for another value nothing."""
    if flag.kind is Kind.OPTIONAL:
        return ()
    return {Kind.FILE: (FILES,), Kind.FOLDER: (FOLDERS,)}.get(flag.kind, (NOTHING,))


def _name(program: str) -> str:
    return f"_{program}_completion"


def _cases(table: Table, write: Callable[[str, Sequence[str]], str]) -> str:
    return "\n".join(write(" ".join(key), values) for key, values in table.items() if values)


def _bash_case(key: str, values: Sequence[str]) -> str:
    return f"        {quote(key)}) printf '%s\\n' {_listed(values)} ;;"


def _fish_case(key: str, values: Sequence[str]) -> str:
    return f"        case {quote(key)}\n            printf '%s\\n' {_listed(values)}"


def _listed(values: Sequence[str]) -> str:
    return " ".join(_quoted(values))


def _quoted(values: Sequence[str]) -> Iterator[str]:
    return (quote(value) for value in values)


_ZSH: Final = """\
autoload -U +X bashcompinit && bashcompinit
"""
_BASH: Final = """\
# completion of {program} in bash; written by `{program} completion bash`
{name}_values() {{
    case "$1 $2" in
{cases}
    esac
}}
{name}() {{
    local line word part first previous prefix values
    line="${{COMP_LINE:0:$COMP_POINT}}"
    word="${{line##*[[:space:]]}}"
    first="" previous=""
    for part in $(printf '%s\\n' "${{line%"$word"}}" | tr -d '*?[]' | cut -d ' ' -f 2-); do
        previous="$part"
        case "$first$part" in
            -*|*=*) ;;
            *) [ -n "$first" ] || case " $({name}_values '' '' | tr '\\n' ' ') " in
                *" $part "*) first="$part" ;;
            esac ;;
        esac
    done
    prefix=""
    case "$word" in
        *=*) previous="${{word%%=*}}"; prefix="$previous="; word="${{word#*=}}"
            case "$previous" in -*) ;; *) previous="$prefix" ;; esac ;;
    esac
    case "$previous" in
        -*|*=) values="$({name}_values "$first" "$previous")" ;;
        *) values="" ;;
    esac
    if [ -z "$values" ] && [ -z "$prefix" ]; then
        values="$({name}_values "$first" "")"
    fi
    COMPREPLY=()
    for part in $(printf '%s\\n' "$values"); do
        case "$part" in
            @nothing) ;;
            @files) COMPREPLY+=($(compgen -f -P "$prefix" -- "$word")) ;;
            @folders) COMPREPLY+=($(compgen -d -P "$prefix" -- "$word")) ;;
            @gpus) part="${{word%%[!0-9]*}}"; prefix="$prefix${{part:-8}}x"; word="${{word#*x}}"
                [ -n "${{word%%[0-9]*}}" ] || word="" ;;
            "$word"*) COMPREPLY+=("$prefix$part") ;;
        esac
    done
    if [ -n "$BASH_VERSION" ]; then
        case "${{#COMPREPLY[@]}} ${{COMPREPLY[0]}}" in "1 "*=) compopt -o nospace ;; esac
        word="${{line##*[[:space:]]}}"
        part="${{word%"${{word##*[=:]}}"}}"
        COMPREPLY=("${{COMPREPLY[@]#"$part"}}")
    fi
}}
complete -F {name} {program}
"""
_FISH: Final = """\
# completion of {program} in fish; written by `{program} completion fish`
function {name}_values
    switch "$argv[1] $argv[2]"
{cases}
    end
end
function {name}
    set -l words (commandline -opc)[2..-1]
    set -l word (commandline -ct)
    set -l first ''
    for part in $words
        if not string match -q -- '-*' $part; and contains -- $part ({name}_values '' '')
            set first $part
            break
        end
    end
    set -l previous ''
    set -q words[-1]; and set previous $words[-1]
    set -l prefix ''
    if string match -q -- '*=*' $word
        set prefix (string split -m 1 = -- $word)[1]=
        set previous $prefix
        string match -q -- '-*' $prefix; and set previous (string trim -r -c = -- $prefix)
        set word (string split -m 1 = -- $word)[2]
    end
    set -l values
    string match -qr -- '^-|=$' $previous; and set values ({name}_values $first $previous)
    if not set -q values[1]; and test -z $prefix
        set values ({name}_values $first '')
    end
    for value in $values
        switch $value
            case @nothing
                continue
            case @files
                __fish_complete_path $word
            case @folders
                __fish_complete_directories $word
            case @gpus
                set -l count (string match -r -- '^[0-9]+' $word)
                set -q count[1]; or set count 8
                set prefix $prefix$count[1]x
            case '*'
                echo $prefix$value
        end
    end
end
complete -c {program} -f -a '({name})'
"""
