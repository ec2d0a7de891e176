"""Help pages as they are written."""

from advisor.report.command_help import explained


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
