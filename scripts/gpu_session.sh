#!/usr/bin/env bash
# What there is to measure on one GPU, in parts: kernels, calibration, predicted against measured, speed, plans, steps.
# Predictions, plans and steps are of whole steps (executor=torch), speed of one rank of executor=torch_attention.
#
#   scripts/gpu_session.sh [--device cuda|cpu] [--out DIR] [--seconds N]      (defaults: cuda, results/gpu, no end)
#
# A part that is done is not repeated, as long as the sources are the same; each has at most LIMIT seconds, and what it
# had finished by then is kept and not done again. --seconds ends the session and prints the table in time, for a GPU
# that is lent for so long; Ctrl-C ends it at once. DIR gets JSON lines, each part's output, and the device's yaml
# below DIR/conf. --device cpu tries the same commands with tiny sizes; its numbers mean nothing.
# Exit codes: 0 all parts are done; 1 some are not; 2 there is no CUDA device, or a wrong option; 130 Ctrl-C.
# See docs/gpu.md.
set -u
cd "$(dirname "$0")/.." || exit 2

LIMIT=${LIMIT:-470}      # seconds: below 8 minutes
PYTHON=${PYTHON:-}
LAST=20 # seconds kept for what a stopped part has to put away, and for the table
device=cuda
out=results/gpu
seconds=
while [ $# -gt 0 ]; do
    case "$1" in
        --device) device=${2:-}; shift 2 || exit 2 ;;
        --out) out=${2:-}; shift 2 || exit 2 ;;
        --seconds) seconds=${2:-}; shift 2 || exit 2 ;;
        *) echo "gpu_session: $1 is no option; there are --device cuda|cpu, --out DIR and --seconds N" >&2; exit 2 ;;
    esac
done
if [ "$device" != cuda ] && [ "$device" != cpu ]; then
    echo "gpu_session: --device is '$device'; it takes cuda or cpu" >&2; exit 2
fi
if [ -n "$seconds" ] && ! [ "$seconds" -gt "$LAST" ] 2>/dev/null; then
    echo "gpu_session: --seconds is '$seconds'; it takes a whole number above $LAST" >&2; exit 2
fi
if [ -z "$PYTHON" ]; then
    PYTHON=python3; [ -x .venv/bin/python ] && PYTHON=.venv/bin/python
fi
if [ "$device" = cuda ] && ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null
then
    echo "gpu_session: torch finds no CUDA device on this machine; --device cpu tries the parts with tiny sizes" >&2
    exit 2
fi

# Sequences' lengths differ from batch to batch: memory in whole segments would be cut into pieces that fit none.
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}

mkdir -p "$out/done" "$out/conf/cluster/device" || exit 2
sources=$("$PYTHON" -c 'from zbench.record.fingerprint import source_digest; print(source_digest())') || exit 2
names=() states=() taken=() lasts=()
interrupted=
trap 'interrupted=yes' INT # a part gets the same signal from the terminal

# part NAME COMMAND...: runs it, unless it is done; its output goes to $out/NAME.log and to the terminal.
part() {
    local name=$1 began=$SECONDS limit=$LIMIT code state; shift
    [ -n "$seconds" ] && [ $((seconds - LAST - SECONDS)) -lt "$limit" ] && limit=$((seconds - LAST - SECONDS))
    if [ "$(cat "$out/done/$name" 2>/dev/null)" = "$sources $device" ]; then
        state="done before"
    elif [ -n "$interrupted" ] || [ "$limit" -le 0 ]; then
        state="not begun"
    else
        echo "== $name: $*"
        # in the terminal's foreground, where Ctrl-C reaches it; tee is to show what is said at the end
        timeout --foreground --signal=INT --kill-after=$((LAST / 2)) "$limit" "$@" 2>&1 | tee -i "$out/$name.log"
        code=${PIPESTATUS[0]}
        case "$code" in
            0) state=done; echo "$sources $device" > "$out/done/$name" ;;
            124 | 137) state="stopped after $limit s" ;;
            *) state="failed ($code)" ;;
        esac
        [ -n "$interrupted" ] && [ "$code" != 0 ] && state=interrupted
    fi
    names+=("$name"); states+=("$state"); taken+=($((SECONDS - began)))
    lasts+=("$(grep -v '^[[:space:]]*$' "$out/$name.log" 2>/dev/null | tail -1)")
}

if [ "$device" = cuda ]; then
    chip=$("$PYTHON" -c 'import re, torch
print(re.sub(r"\W+", "_", torch.cuda.get_device_name().lower().removeprefix("nvidia ")))')
    correctness=() plans=()
    calibration=(--model llama3_8b --matmuls llama_3b,llama_7b,llama_13b,llama_30b,llama3_8b --tokens 16384)
    calibration+=(--seconds 0.1)
    case "$chip" in h200 | h100_80gb_hbm3) calibration+=(--peak "989 TFLOP/s") ;; esac # dense bf16, SXM datasheets
    training=() speed=(attention ring step) deep=(deep) tiny=()
    workloads=(fixed_4k fixed_32k longtail_32k wikipedia prolong64k pystdlib)
else
    chip=cpu
    correctness=(--shrink 16) plans=(--systems ring --precisions float32)
    calibration=(--model tiny --tokens 256 --seconds 0.004)
    training=(model=tiny tokens_per_gpu=512 steps=1) speed=(ring) deep=() tiny=(--tiny)
    workloads=(fixed_4k)
fi
yaml=$out/conf/cluster/device/${chip}_measured.yaml

warming=
if [ "$device" = cuda ] && [ "$(cat "$out/done/warm" 2>/dev/null)" != "$sources $device" ]; then
    # The simulator's loops are compiled by another core while kernels are tried, which need none of them.
    "$PYTHON" -m zbench.warm > "$out/warming.log" 2>&1 &
    warming=$!
    trap 'kill "$warming" 2>/dev/null' EXIT
fi
part kernels "$PYTHON" -m zbench.correctness --device "$device" --parts kernels \
    --out "$out/correctness.jsonl" ${correctness[@]+"${correctness[@]}"}
part calibration "$PYTHON" -m zbench.calibrate --only-device --device "$device" "${calibration[@]}" \
    --points "$out/attention.jsonl" -o "$yaml"
[ "$device" = cuda ] && part warm "$PYTHON" -m zbench.warm --backwards # until it meets what is compiled already
if [ -e "$yaml" ]; then
    for workload in "${workloads[@]}"; do # one a part: each draws half a billion weights first
        part "predicted_$workload" "$PYTHON" -m zbench.predicted --config-dir "$out/conf" \
            "cluster/device=${chip}_measured" "executor.device=$device" ${training[@]+"${training[@]}"} \
            --workloads "$workload" --out "$out/predicted"
    done
    rm -f "$out/done/predicted" # the table of all that is measured: nothing is run again
    part predicted "$PYTHON" -m zbench.predicted --config-dir "$out/conf" \
        "cluster/device=${chip}_measured" "executor.device=$device" ${training[@]+"${training[@]}"} \
        --workloads "$(IFS=,; echo "${workloads[*]}")" --out "$out/predicted"
else
    echo "== predicted: there is no $yaml, since the calibration is not done"
fi
speed() {
    part "speed_$1" "$PYTHON" -m zbench.speed --device "$device" --parts "$1" --out "$out/speed.jsonl" \
        ${tiny[@]+"${tiny[@]}"}
}
for what in "${speed[@]}"; do speed "$what"; done
part plans "$PYTHON" -m zbench.correctness --device "$device" --parts plans \
    --out "$out/correctness.jsonl" ${plans[@]+"${plans[@]}"}
[ "$device" = cuda ] && part steps "$PYTHON" -m zbench.correctness steps
for what in ${deep[@]+"${deep[@]}"}; do speed "$what"; done

echo
printf '%-24s %-18s %6s  %s\n' part state s "last line"
failed=0
for at in "${!names[@]}"; do
    printf '%-24s %-18s %6s  %s\n' "${names[$at]}" "${states[$at]}" "${taken[$at]}" "${lasts[$at]}"
    case "${states[$at]}" in done*) ;; *) failed=1 ;; esac
done
[ -e "$yaml" ] || failed=1
[ -n "$interrupted" ] && failed=130
[ "$device" = cuda ] && [ -e "$yaml" ] && echo "To keep the device: cp $yaml conf/cluster/device/"
exit $failed
