"""Shell as shell: ends of commands, variables, branches, here-documents, wrappers, places."""

from pathlib import Path

import pytest

from advisor.reading.shell import ShellCommand, read_shell


def commands(text: str) -> list[tuple[str, ...]]:
    return [command.texts for command in read_shell(text, "a.sh").commands]


def last(text: str) -> ShellCommand:
    return read_shell(text, "a.sh").commands[-1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run --m mlp 2>&1 | tee log.txt", [("run", "--m", "mlp"), ("tee", "log.txt")]),
        ("for i in 1; do run --m mlp; done", [("run", "--m", "mlp")]),
        ("run --a; fi --b && x || y > log &", [("run", "--a"), ("fi", "--b"), ("x",), ("y",)]),
        ("run --b 1 \\\n  --c 2", [("run", "--b", "1", "--c", "2")]),
        ("run --b '1 2' # --c", [("run", "--b", "1 2")]),
        ("run --b 1 `# one` \\\n --c", [("run", "--b", "1", "--c")]),
        ("A=3\nx $A ${A} ${Z:-7} $Q ${Q}", [("x", "3", "3", "7", "$Q", "${Q}")]),
        ('O="--b 1 \\\n --c"\nx $O', [("x", "--b", "1", "--c")]),
        ('O="--b 1"\nx "$O" ""', [("x", "--b 1", "")]),
        (
            'A=(--a 1 "b c")\nA+=(--d)\nx "${A[@]}" ${A[0]}',
            [("x", "--a", "1", "b c", "--d", "--a")],
        ),
        ("A=\nx $A --b", [("x", "--b")]),
        ('A=1\nB=2\nx "$A $B ${A}\t${B} $Q $Q"', [("x", "1 2 1\t2 $Q $Q")]),
        ("A=1\nx ${Z:-$A $A}", [("x", "1", "1")]),
        ("N=4\nx $((N * 2)) $((N / 3)) $((-N / 3))", [("x", "8", "1", "-1")]),
        (f"x $(({'9' * 400} / 3))", [("x", f"$(({'9' * 400} / 3))")]),
        (': "${N:=2}"\nx $N', [(":", "2"), ("x", "2")]),
        ("x ${N:+--n $N}\nN=1\ny ${N:+--n $N}", [("x",), ("y", "--n", "1")]),
        ("while a; do for f in *.py; do x $f; done; done", [("a",), ("x", "$f")]),
        ("srun bash -c 'x --b 1'", [("x", "--b", "1"), ("srun", "bash", "-c", "x --b 1")]),
        ('C="x --b 1"\neval $C', [("x", "--b", "1")]),
        ('sbatch --wrap="x --b"', [("x", "--b"), ("sbatch", "--wrap=x --b")]),
        ('f() { x $1 "$@"; }\nf a b', [("x", "a", "a", "b")]),
        ("f() { local n=$1; shift; x $n $@; }\nf a b", [("x", "a", "b")]),
        ("bash <<EOF\nx --b\nEOF", [("x", "--b")]),
        ("until x --b; do sleep 1; done", [("x", "--b")]),
        ("echo run --b 1", []),
    ],
)
def test_words_of_commands(text: str, words: list[tuple[str, ...]]) -> None:
    found = commands(text)
    assert [texts for texts in found if texts[0] != "bash"] == words


def test_files_next_to_a_script_are_read(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.sh").write_text("ARGS=(--n 4)\n")
    (tmp_path / "b.txt").write_text("--b 1\n--c\n")
    text = (
        'source "$(dirname "$0")/models/a.sh"\nx "${ARGS[@]}" $(cat b.txt) '
        '`cat $DIR/b.txt` "$(<b.txt)"\n'
        "y @b.txt @none.txt\n"
    )
    found = [one.texts for one in read_shell(text, "a.sh", tmp_path).commands]
    words = ("--b", "1", "--c")
    assert found == [
        ("x", "--n", "4", *words, *words, "--b 1\n--c\n"),
        ("y", *words, "@none.txt"),
    ]


def test_what_a_file_that_is_not_read_may_set_is_unknown() -> None:
    text = "source a.sh\nB+=(--c)\nx ${A[@]} ${B[@]} $C\nA=1 C=2\n"
    command = last(text)
    assert [word.unknown for word in command.words] == [False, True, True, True]
    loop = "A=()\nwhile read line; do A+=($line); done < f\nx ${A[@]}"
    assert last(loop).words[1].unknown


def test_parameters_that_a_script_sets_itself() -> None:
    assert commands('set -- --a 1\nset -- "$@" --b\nx "$@"') == [("x", "--a", "1", "--b")]
    written = "cat > run.sh <<EOF\nx --b $N\nEOF\nbash run.sh"
    assert ("x", "--b", "$N") in commands(written)


BRANCHES = """
if [ "$SIZE" = 8b ]; then
  A="--n 32"
elif [[ $SIZE == 70b ]]; then
  A="--n 80"
else
  exit 1
fi
[ "$SIZE" = 70b ] && A="$A --tp 4"
x $A
"""


def test_branches_are_never_added_together() -> None:
    assert commands(BRANCHES) == [("x", "--n", "32"), ("x", "--n", "80", "--tp", "4")]
    assert read_shell(BRANCHES, "a.sh").commands[0].branch == ('[ "$SIZE" = 8b ]',)
    (command,) = read_shell("if [ $A = 1 ]; then B=2; fi\nx", "a.sh").commands
    assert command.branch == (), "no branch changes it"


def test_what_the_script_decides_is_decided() -> None:
    text = 'FP8=0\nif [ $FP8 -eq 1 ]; then A="--fp8"; fi\nx $A'
    assert commands(text) == [("x",)]
    assert len(commands(text.replace("FP8=0", "FP8=${FP8:-0}"))) == 2


def test_a_case_takes_its_patterns_one_by_one() -> None:
    text = "case $V in a) O=1;; b|c) O=2;; *) exit;; esac\nx $O\ncase $V in a) y;; esac"
    assert commands(text) == [("x", "1"), ("x", "2"), ("y",)]
    text = "TP=2\nwhile [ $# -gt 0 ]; do case $1 in --tp) TP=$2; shift;; esac; shift; done\nx $TP"
    assert commands(text)[-1] == ("x", "2"), "a loop over arguments leaves the default likely"
    assert commands('ARGS="--a 1"\nB=2') == [("--a", "1")], "no command uses it"


def test_the_environment_of_a_command() -> None:
    found = last("export A=1\nB=2\nC=3 srun --export=ALL,D=4 x").environment
    assert {name: word.text for name, word in found.items()} == {"A": "1", "C": "3", "D": "4"}


def test_places_are_those_of_the_text_after_a_variable() -> None:
    words = last('O="--a 1 \\\n  --bb 2"\nsrun sh -c "run $O"\nrun $O').words
    places = [(w.text, w.place.line, w.place.column) for w in words[1:]]
    assert places == [("--a", 1, 4), ("1", 1, 8), ("--bb", 2, 3), ("2", 2, 8)]


def test_here_documents_become_files_with_places() -> None:
    (file,) = read_shell('S=3\ncat > ds.json <<EOF\n{"stage": $S, "x": $Y}\nEOF\n', "a.sh").files
    assert (file.name, file.content.text) == ("ds.json", '{"stage": 3, "x": $Y}\n')
    assert file.content.place_at(12).line == 3
    (quoted,) = read_shell("cat <<'EOF' > a.json\n{$S}\nEOF\n", "a.sh").files
    assert quoted.content.text == "{$S}\n"


def test_read_and_cat_put_a_here_document_into_a_variable() -> None:
    assert ("y", "--b") in commands("read -r -d '' C <<EOF\ny --b\nEOF\nsrun bash -c \"$C\"")
    assert ("y", "--b") in commands('C=$(cat <<EOF\ny --b\nEOF\n)\neval "$C"')


def test_what_cannot_be_read_is_a_note_with_its_line() -> None:
    script = read_shell("x --a\nsource env.sh\ny 'unbalanced\n", "a.sh")
    assert script.commands[0].texts == ("x", "--a")
    assert {note.place.line for note in script.notes} == {2, 3}


def test_a_quote_that_is_missing_cuts_no_character_in_two() -> None:
    assert read_shell('x "é', "a.sh").notes


def test_directives_of_slurm() -> None:
    script = read_shell("#!/bin/bash\n#SBATCH --nodes=4 --gpus-per-node 8\nx\n", "a.sh")
    assert [w.text for w in script.directives] == ["--nodes=4", "--gpus-per-node", "8"]


def test_many_conditions_do_not_take_forever() -> None:
    text = "".join(f'if [ $A{n} = 1 ]; then O="$O --o{n}"; fi\n' for n in range(40)) + "x --b $O\n"
    assert any(texts[:2] == ("x", "--b") for texts in commands(text))
