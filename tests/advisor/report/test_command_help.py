"""Help pages as they are written."""

from pathlib import Path

from advisor.report.command_help import CommandHelp, Flag, Topic, read_page

PAGE = """\
advise it [flags]

Does it,
and more.

  $ advise it --tp 2  # on two GPUs
  $ advise it

Flags
  --tp, --tensor N  degrees
  --help            this page
  a long name, with its text below
      goes on here

  Others are searched.

What is done

  All of it.

Exit codes: 0 done.
"""


def test_a_page_is_read_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "it.txt").write_text(PAGE)
    degrees = Flag("--tp, --tensor N", "degrees", repeated=True)
    words = ("--help", "this page"), ("a long name, with its text below", "goes on here")
    flags = Topic("Flags", (degrees, *words), "Others are searched.")
    assert read_page(str(tmp_path / "it.py"), "it", {"--tp": {"repeated": True}}) == CommandHelp(
        usage="advise it [flags]",
        about="Does it, and more.",
        examples=(("advise it --tp 2", "on two GPUs"), ("advise it", "")),
        topics=(flags, Topic("What is done", text="All of it.")),
        closing="Exit codes: 0 done.",
    )
