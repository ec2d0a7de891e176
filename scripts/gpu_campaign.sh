#!/usr/bin/env bash
# Tests and measures on a machine with one CUDA GPU that has no network and is lent for minutes:
#
#   scripts/gpu_campaign.sh OUT [CAMPAIGN[:ITEM,ITEM...]]...
#   WHEELS=wheels scripts/gpu_campaign.sh OUT h200
#   scripts/gpu_campaign.sh OUT h200:long,experts          these items, in this order
#
# Campaigns are files of research/campaign/lists, h200 where none is named, one after another. The whole
# ends within LIMIT_SECONDS. OUT gets campaign.tar.gz (everything measured, written again every
# minute), accuracy.md and .csv, tests.txt and campaign.txt (what was said). All of it stays in
# KEEP too: the same call goes on from there, while the machine's disk lasts.
#
#   LIMIT_SECONDS=520    for everything; RESERVE_SECONDS=25 of them for accuracy and packing
#   TESTS=all            test_native.py first, the gate: where none of its tests passes nothing is
#                        measured. The other files of tests/gpu in what time is left at the end.
#                        gate: it alone. none: no tests.
#   GATE=1               0: the campaigns begin whatever the gate says
#   GATE_SECONDS=110     for the gate         TEST_SECONDS=0   kept from the campaigns for the others
#   RETRY=               1: what failed with this very program is tried again, tests too
#   KEEP=/var/tmp/recompute-campaign
#   RESUME=ARCHIVE       an earlier campaign.tar.gz; what KEEP has stays
#   WHEELS=FOLDER        packages that are missing there; unpacked, not installed: needs no pip
#   ARCHIVE_BYTES=15000000   above this the archive leaves out files of more than 256 KiB
#   PYTHON=python3
#
# Each file of tests is a process of its own: none holds the GPU while another measures. One that
# ran to its end is not run again by the same program on the same disk, unless RETRY=1.
#
# Exit code: 0 done, 3 something is left, 4 an item failed or the gate is shut, 2 wrong use.
set -uo pipefail

[ $# -ge 1 ] || { echo "usage: scripts/gpu_campaign.sh OUT [CAMPAIGN[:ITEM,...]]..." >&2; exit 2; }
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
shift
[ $# -ge 1 ] || set -- h200
case ${WHEELS:-} in ''|/*) ;; *) WHEELS=$PWD/$WHEELS ;; esac
case ${RESUME:-} in ''|/*) ;; *) RESUME=$PWD/$RESUME ;; esac
keep=${KEEP:-/var/tmp/recompute-campaign}
mkdir -p "$keep/campaign" "$keep/tests" && keep=$(cd "$keep" && pwd) || exit 2
work=$keep/campaign
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-python3}
tests=${TESTS:-all}
scratch=$(mktemp -d)
mkdir -p "$scratch/site"
packer=
trap '[ -z "$packer" ] || kill "$packer" 2>/dev/null; rm -rf "$scratch"' EXIT

export PYTHONPATH=$PWD:$scratch/site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
for wheel in ${WHEELS:+"$WHEELS"/*.whl}; do
  "$python" -m zipfile -e "$wheel" "$scratch/site" || { echo "no wheel: $wheel" >&2; exit 2; }
done
rm -rf "$scratch/site/tests"  # a wheel's own, which would hide ours
if [ -n "${RESUME:-}" ]; then
  tar -xzf "$RESUME" -C "$keep" --skip-old-files || { echo "no archive: $RESUME" >&2; exit 2; }
fi
"$python" -c 'import hydra, msgspec, yaml; from importlib.metadata import version as v; print("torch", v("torch"))' \
  || { echo "a package is missing: bring it in WHEELS (docs/campaign.md)" >&2; exit 2; }
version=$("$python" -m research.campaign.version) || exit 2
[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] \
  || echo "uncommitted changes: the commit in the results cannot be checked out" >&2

# Seconds until the reserve begins; SECONDS counts from the start of this script.
left() { echo $((${LIMIT_SECONDS:-520} - ${RESERVE_SECONDS:-25} - SECONDS)); }

at_most() { echo $(($1 < $2 ? $1 : $2)); }

# What is large stays in KEEP alone where the archive would be too large to bring home.
pack() {
  local given=(-C "$keep" --exclude=lock --exclude='*.tmp' campaign)
  tar -czf "$scratch/packed" "${given[@]}" 2>/dev/null
  if [ "$(stat -c %s "$scratch/packed")" -gt "${ARCHIVE_BYTES:-15000000}" ]; then
    (cd "$keep" && find campaign -type f -size +256k) >"$scratch/large"
    echo "left out of campaign.tar.gz: $(tr '\n' ' ' <"$scratch/large")" >&2
    tar -czf "$scratch/packed" --exclude-from="$scratch/large" "${given[@]}" 2>/dev/null
  fi
  cp "$scratch/packed" "$out/.packed" && mv "$out/.packed" "$out/campaign.tar.gz"
}

# $1: a file of tests, $2: seconds at most. What it says goes to KEEP, and here.
run_tests() {
  local said code stamp
  said=$keep/tests/$(basename "$1" .py)
  stamp="$version $(cksum <"$1")"
  if [ -n "${RETRY:-}" ] || [ "$(cat "$said.ended" 2>/dev/null)" != "$stamp" ]; then
    rm -f "$said.ended"
    timeout -s INT -k 10 "$2" "$python" -m pytest "$1" -rfE --tb=line -p no:cacheprovider \
      2>&1 | tee "$said.txt"
    code=${PIPESTATUS[0]}
    echo "$code" >"$said.code"
    if [ "$code" -lt 124 ]; then echo "$stamp" >"$said.ended"; else echo "cut after $2 s" >>"$said.txt"; fi
  fi
}

# Some test failed and none passed; one that was ended too early to tell does not shut it.
gate_is_shut() {
  local said=$keep/tests/test_native
  case $(cat "$said.code") in 0|5|124|137) return 1 ;; esac
  ! grep -q '[0-9] passed' "$said.txt"
}

summary_of_tests() {
  local file said
  for file in tests/gpu/test_*.py; do
    said=$(grep . "$keep/tests/$(basename "$file" .py).txt" 2>/dev/null | tail -n 1)
    echo "$(basename "$file"): ${said:-not run}"
  done
}

code=0
if [ "$tests" != none ] && ! "$python" -c 'import pytest' 2>/dev/null; then
  echo "pytest is missing: no tests"
  tests=none
fi
if [ "$tests" != none ]; then
  run_tests tests/gpu/test_native.py "$(at_most "${GATE_SECONDS:-110}" "$(left)")"
  if [ "${GATE:-1}" != 0 ] && gate_is_shut; then
    echo "the gate is shut: no test of tests/gpu/test_native.py passed, nothing is measured (GATE=0 goes on)"
    code=4
    set --
  fi
fi

# Its sleep ends with it, or whoever reads this script's output would wait for that.
( trap 'kill $(jobs -p) 2>/dev/null; exit' TERM; while :; do sleep 60 & wait $!; pack; done ) &
packer=$!
: >"$out/campaign.txt"
for one in "$@"; do
  budget=$(($(left) - ${TEST_SECONDS:-0}))
  [ "$budget" -ge 15 ] || { [ "$code" != 0 ] || code=3; break; }
  items=${one#"${one%%:*}"}
  timeout -k 20 $((budget + 20)) "$python" -m research.campaign "${one%%:*}" \
    --budget "${budget}s" ${items:+--items "${items#:}"} ${RETRY:+--retry} --out "$work" \
    2>&1 | tee -a "$out/campaign.txt"
  ended=${PIPESTATUS[0]}
  case $ended in 0) ;; 3|124|137) [ "$code" != 0 ] || code=3 ;; *) code=$ended ;; esac
  [ "$ended" != 2 ] || break
done
kill "$packer" 2>/dev/null
wait "$packer" 2>/dev/null
packer=
# The last words of what failed: its log lies in the archive.
for log in $(grep -o 'logs/[A-Za-z0-9_-]*\.txt' "$out/campaign.txt" | sort -u); do
  echo "== $log"
  tail -n 12 "$work/$log"
done
pack

if [ "$tests" = all ] && [ "$#" -ge 1 ] && [ "$code" != 2 ]; then
  for file in tests/gpu/test_*.py; do
    [ "$file" != tests/gpu/test_native.py ] && [ "$(left)" -ge 30 ] || continue
    run_tests "$file" "$(at_most 150 "$(left)")"
  done
fi
if timeout -k 5 "$(at_most 120 $((${RESERVE_SECONDS:-25} + ($(left) > 0 ? $(left) : 0))))" \
  "$python" -m harness.cli.main accuracy "$work"; then
  cp "$work/accuracy.md" "$work/accuracy.csv" "$out"
fi
pack
if [ "$tests" != none ]; then
  summary_of_tests | tee "$out/tests.txt"
  cat "$keep"/tests/*.txt >>"$out/tests.txt"
fi
ls -l "$out"
echo "ended with $code after $SECONDS s"
exit "$code"
