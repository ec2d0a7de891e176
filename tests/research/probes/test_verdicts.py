"""Verdicts that are asked are clear ones, near the limit, and many enough of both kinds."""

from research.probes.verdicts import cases


def test_cases_are_close_and_said_with_certainty() -> None:
    fits, over, plain = [], [], 0
    for case in cases(False):
        said = case.predict()
        share = said["used_bytes"] / said["limit_bytes"]
        assert said["fit_probability"] >= 0.95 or said["fit_probability"] <= 0.05, case.name
        (fits if said["fit_probability"] >= 0.95 else over).append(share)
        plain += not case.variables
    assert len(fits) >= 20
    assert all(0.93 <= share <= 0.99 for share in fits)
    assert len(over) >= 10
    assert all(1 < share < 1.06 for share in over)
    assert plain >= 10
