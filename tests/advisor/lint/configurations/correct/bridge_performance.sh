#!/bin/bash
python scripts/performance/setup_experiment.py \
  --account acc --partition batch -g h100 -m llama -mr llama3_70b \
  -ng 64 -gn 8 -c fp8_cs \
  -tp 4 -pp 8 -vp 5 -mb 1 -gb 128 \
  -l logs 2>&1 | tee submit.log; exit ${PIPESTATUS[0]}
