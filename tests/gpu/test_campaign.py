"""A whole campaign on a GPU: one small run in a process of its own, trusted, predicted, judged."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

from harness.cli.main import main  # noqa: E402
from research.campaign.__main__ import main as run_campaign  # noqa: E402

CAMPAIGN = """
items:
  - name: small
    arguments:
      [run, --no-report, 'runs={out}/runs', device=cuda, experiment=llama3.2_1b_1xh100,
       model.num_layers=2, model.transformer_impl=local, model.attention_backend=flash,
       model.share_embeddings_and_output_weights=false, job.seq_length=2048,
       job.global_batch_size=2, measure.steps=5,
       'recompute.settings=[none,"full:uniform:1"]']
    why: to see
"""


def test_a_small_run_alone_on_its_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "small.yaml", tmp_path / "out"
    path.write_text(CAMPAIGN)
    assert run_campaign([str(path), "--budget", "3min", "--out", str(out)]) == 0
    results = [json.loads(file.read_text()) for file in out.rglob("result.json")]
    assert len(results) == 2
    for result in results:
        assert result["status"] in ("ok", "unstable"), result["evidence"]
        assert "other_processes" not in [concern["name"] for concern in result["concerns"]]
        (memory,) = result["memory"]
        predicted = result["trial"]["prediction"]["peak_allocated_bytes"]
        assert memory["allocated"] == pytest.approx(predicted, rel=0.05)
    assert main(["accuracy", str(out)]) == 0
    assert "1 cell, 2 settings" in capsys.readouterr().out
