"""Help pages as they are written."""

from pathlib import Path

from advisor.report.command_help import CommandHelp, Flag, FlagKind, Topic, explained, read_page


def test_rows_are_read_as_they_are_written() -> None:
    text = """
        0  pass
        a long name, with its text below
            goes on here
            and here
        b   first
          and more
    """
    assert explained(text) == (
        ("0", "pass"),
        ("a long name, with its text below", "goes on here and here"),
        ("b", "first and more"),
    )


PAGE = """\
advise it [flags]

Does it,
and more.

  $ advise it --tp 2  # on two GPUs
  $ advise it

Flags
  --tp, --tensor N  degrees
  --out FILE        where it goes; may
      be repeated
  --help            show this page

  Others are searched.

What is done

  All of it.

Read more elsewhere.

Exit codes: 0 done.
"""


def test_a_page_is_read_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "it.txt").write_text(PAGE)
    page = read_page(str(tmp_path / "help.py"), "it", {"--out": {"repeated": True}})
    degrees = Flag("--tp, --tensor N", "degrees")
    out = Flag("--out FILE", "where it goes; may be repeated", repeated=True)
    flags = Topic("Flags", (degrees, out, ("--help", "show this page")), "Others are searched.")
    assert page == CommandHelp(
        usage="advise it [flags]",
        about="Does it, and more.",
        examples=(("advise it --tp 2", "on two GPUs"), "advise it"),
        topics=(flags, Topic("What is done", text="All of it.")),
        closing="Read more elsewhere.\n\nExit codes: 0 done.",
    )
    assert [flag.kind for flag in page.flags] == [FlagKind.NUMBER, FlagKind.FILE]
