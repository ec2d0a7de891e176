#!/usr/bin/env bash
# Tests and measures on a machine with one CUDA GPU that has no network and is lent for minutes:
#
#   scripts/gpu_campaign.sh OUT
#   WHEELS=wheels RESUME=OUT/campaign.tar.gz scripts/gpu_campaign.sh OUT
#
# OUT gets campaign.tar.gz (everything measured, written again every minute), accuracy.md and .csv,
# tests.txt and campaign.txt (what was said). The same call with RESUME= goes on where it stopped.
#
#   CAMPAIGN=h200        a campaign of configs/campaign        BUDGET=7min   for its items
#   TEST_SECONDS=120     for tests/gpu first; 0: none          PYTHON=python3
#   WHEELS=FOLDER        packages that are missing there; unpacked, not installed: needs no pip
#   RESUME=ARCHIVE       an earlier campaign.tar.gz
#
# Exit code: that of harness campaign (0 done, 3 something is left, 4 an item failed), 2 wrong use.
set -uo pipefail

[ $# -eq 1 ] || { echo "usage: scripts/gpu_campaign.sh OUT" >&2; exit 2; }
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
case ${WHEELS:-} in ''|/*) ;; *) WHEELS=$PWD/$WHEELS ;; esac
case ${RESUME:-} in ''|/*) ;; *) RESUME=$PWD/$RESUME ;; esac
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-python3}
scratch=$(mktemp -d)
work=$scratch/campaign
mkdir -p "$work" "$scratch/site"
packer=
trap '[ -z "$packer" ] || kill "$packer" 2>/dev/null; rm -rf "$scratch"' EXIT

export PYTHONPATH=$PWD:$scratch/site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
for wheel in ${WHEELS:+"$WHEELS"/*.whl}; do
  "$python" -m zipfile -e "$wheel" "$scratch/site" || { echo "no wheel: $wheel" >&2; exit 2; }
done
if [ -n "${RESUME:-}" ]; then
  tar -xzf "$RESUME" -C "$scratch" || { echo "no archive: $RESUME" >&2; exit 2; }
fi
"$python" -c 'import hydra, torch, yaml; print("torch", torch.__version__, "cuda", torch.version.cuda)' \
  || { echo "a package is missing: bring it in WHEELS (docs/campaign.md)" >&2; exit 2; }

pack() {
  tar -czf "$scratch/packed" -C "$scratch" --exclude=lock --exclude='*.tmp' campaign 2>/dev/null
  cp "$scratch/packed" "$out/.packed" && mv "$out/.packed" "$out/campaign.tar.gz"
}

if [ "${TEST_SECONDS:-120}" != 0 ]; then
  timeout -k 5 "${TEST_SECONDS:-120}" "$python" -m pytest tests/gpu -q --maxfail=20 \
    -p no:cacheprovider 2>&1 | tee "$out/tests.txt"
fi

# Its sleep ends with it, or whoever reads this script's output would wait for that.
( trap 'kill "$nap"; exit' TERM; while :; do sleep 60 & nap=$!; wait "$nap"; pack; done ) &
packer=$!
"$python" -m harness.cli campaign "${CAMPAIGN:-h200}" --budget "${BUDGET:-7min}" --out "$work" \
  2>&1 | tee "$out/campaign.txt"
code=${PIPESTATUS[0]}
kill "$packer" 2>/dev/null
wait "$packer" 2>/dev/null
packer=

if "$python" -m harness.cli accuracy "$work"; then
  cp "$work/accuracy.md" "$work/accuracy.csv" "$out"
fi
pack
ls -l "$out"
exit "$code"
