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
    write = _fish_case if shell is Shell.FISH else _posix_case
    cases = _cases(table, write)
    return _SCRIPTS[shell].format(program=program, name=f"_{program}_completion", cases=cases)


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


def _cases(table: Table, write: Callable[[str, Sequence[str]], str]) -> str:
    return "\n".join(write(" ".join(key), values) for key, values in table.items() if values)


def _posix_case(key: str, values: Sequence[str]) -> str:
    return f"        {quote(key)}) printf '%s\\n' {_listed(values)} ;;"


def _fish_case(key: str, values: Sequence[str]) -> str:
    return f"        case {quote(key)}\n            printf '%s\\n' {_listed(values)}"


def _listed(values: Sequence[str]) -> str:
    return " ".join(_quoted(values))


def _quoted(values: Sequence[str]) -> Iterator[str]:
    return (quote(value) for value in values)


_BASH: Final = """\
# completion of {program} in bash; written by `{program} completion bash`
{name}_values() {{
    case "$1 $2" in
{cases}
    esac
}}
{name}() {{
    local part blank rest count whole cut word first previous prefix values found known
    rest="${{COMP_LINE:0:$COMP_POINT}}" count=0 word="" first="" previous=""
    for part in "${{COMP_WORDS[@]:0:$COMP_CWORD+1}}"; do
        blank="${{rest%%[![:space:]]*}}" rest="${{rest#"${{rest%%[![:space:]]*}}"}}"
        if [ -n "$blank" ]; then
            [ $((count++)) != 1 ] || first="$word"
            previous="$word" word=""
        fi
        case "$rest" in "$part"*) ;; *) part="$rest" ;; esac
        word="$word$part" rest="${{rest#"$part"}}"
    done
    case "$part" in [=:]) cut="$word" ;; *) cut="${{word%"$part"}}" ;; esac
    known=" $({name}_values '' '' | tr '\\n' ' ') "
    case "$first" in -*) first="" ;; esac
    case "$known" in *" $first "*) ;; *) first="" ;; esac
    prefix=""
    case "$word" in
        *=*) previous="${{word%%=*}}"; prefix="$previous="; word="${{word#*=}}"
            case "$previous" in -*) ;; *) previous="$prefix" ;; esac ;;
    esac
    whole="$prefix" values="" found=""
    case "$previous" in
        -*|*=) values="$({name}_values "$first" "$previous")" ;;
    esac
    if [ -z "$values" ] && [ -z "$prefix" ]; then
        values="$({name}_values "$first" "")"
    fi
    COMPREPLY=()
    while IFS= read -r part; do
        case "$part" in
            @nothing) ;;
            @files) found=default ;;
            @folders) found=dirnames ;;
            @gpus) part="${{word%%[!0-9]*}}"; prefix="$prefix${{part:-8}}x"; word="${{word#*x}}"
                [ -n "${{word%%[0-9]*}}" ] || word="" ;;
            "$word"*) [ -z "$part" ] || COMPREPLY+=("$prefix$part") ;;
        esac
    done <<< "$values"
    if [ -n "$found" ] && [ ${{#COMPREPLY[@]}} = 0 ] && [ "$cut" = "$whole" ]; then
        compopt -o $found
    elif [ -n "$found" ]; then
        while IFS= read -r part; do
            [ ! -d "$part" ] || part="$part/"
            [ -z "$part" ] || COMPREPLY+=("$prefix$(printf %q "$part")")
        done < <(compgen -o $found -- "$word")
    fi
    case "${{#COMPREPLY[@]}} ${{COMPREPLY[0]}}" in "1 "*[=/]) compopt -o nospace ;; esac
    COMPREPLY=("${{COMPREPLY[@]#"$cut"}}")
}}
complete -F {name} {program}
"""
_ZSH: Final = """\
# completion of {program} in zsh; written by `{program} completion zsh`
{name}_values() {{
    case "$1 $2" in
{cases}
    esac
}}
{name}() {{
    local part first="" previous="$words[CURRENT-1]" prefix="" gpus=""
    local -a values plain keys
    if (( CURRENT > 2 )) && [[ "$words[2]" != -* ]]; then
        values=("${{(@f)$({name}_values '' '')}}")
        (( ${{values[(Ie)$words[2]]}} )) && first="$words[2]"
    fi
    if compset -P 1 '*='; then
        prefix="$IPREFIX" previous="$IPREFIX"
        [[ "$previous" != -* ]] || previous="${{previous%=}}"
    fi
    values=()
    case "$previous" in
        -*|*=) values=(${{(f)"$({name}_values "$first" "$previous")"}}) ;;
    esac
    if (( ! $#values )) && [[ -z "$prefix" ]]; then
        values=(${{(f)"$({name}_values "$first" "")"}})
    fi
    for part in $values; do
        case "$part" in
            @nothing) ;;
            @files) _files ;;
            @folders) _files -/ ;;
            @gpus) compset -P '<->x' || {{ gpus="${{PREFIX%%[^0-9]*}}"; gpus="${{gpus:-8}}x" }} ;;
            *=) keys+=("$part") ;;
            *) plain+=("$gpus$part") ;;
        esac
    done
    compadd -a plain
    compadd -S '' -a keys
}}
compdef {name} {program}
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
    set -l word (string unescape -- (commandline -ct))
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
                string replace -r '^' -- $prefix (__fish_complete_path $word)
            case @folders
                string replace -r '^' -- $prefix (__fish_complete_directories $word)
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
_SCRIPTS: Final = {Shell.BASH: _BASH, Shell.ZSH: _ZSH, Shell.FISH: _FISH}
