"""Predictions made anew are those of a plan made today."""

from msgspec.structs import replace

from harness.judge.accuracy_rows import setting_rows
from harness.judge.repredict import predict_again
from harness.trial.trial import Device
from tests.harness.judge.synthetic import WORKLOAD, prediction, result


def test_a_prediction_of_today_replaces_the_old_one() -> None:
    old = result("selective:mlp", 1.0, predicted=prediction(99.0, 1))
    trial = predict_again(old)
    assert trial["prediction"]["step_time_seconds"] < 1.0
    assert trial["workload"] == old.trial["workload"]
    (row,) = setting_rows([replace(old, trial=trial)])
    assert row.allocated.predicted != 1


def test_none_is_made_of_what_the_advisor_does_not_predict() -> None:
    cpu = replace(WORKLOAD, device=Device.CPU)
    unknown = {"gpus": [{"torch_name": "Voodoo 2"}]}
    assert predict_again(result("none", 1.0, workload=cpu)) is None
    assert predict_again(result("op:save_attention", 1.0)) is None
    assert predict_again(result("none", 1.0, environment=unknown)) is None
    assert predict_again(result("none", 1.0, environment={})) is None
