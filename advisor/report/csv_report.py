"""`--format csv`: one row a candidate, raw bytes and seconds, names as in the JSON report."""

import csv
import io

from advisor.answer.advice import Advice


def csv_report(advice: Advice) -> str:
    """Head and one line for each candidate; empty where there is none."""
    text, rows = io.StringIO(), advice.rows()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
