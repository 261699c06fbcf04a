#!/bin/bash
# Tests and figures that need a CUDA GPU, in about five minutes, on a machine that has Python's packages but no .venv:
#   tests/gpu/measure.sh FOLDER [PROGRAM]
# What a step prints is in FOLDER and, its end, on the screen. A step that takes longer than its seconds is ended, and the next begins.
# PROGRAM runs last. ONLY="kernels tests" runs only the steps of these names.
out=${1:?a folder for the results}
cd "$(dirname "$0")/../.." || exit
export PYTHONPATH="$PWD:$PYTHONPATH" PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=${OMP_NUM_THREADS:-8} MANTISSA_TEST_GPU=1
python=${PYTHON:-python3}

step() { # name, seconds, lines to show, command
	local name=$1 seconds=$2 lines=$3 begun=$SECONDS
	shift 3
	if [[ -n $ONLY && " $ONLY " != *" $name "* ]]; then return; fi
	timeout --foreground -s INT -k 10 "$seconds" "$@" >"$out/$name.txt" 2>&1
	echo "== $name: status $?, $((SECONDS - begun)) s, after $SECONDS s"
	grep -v -e 'Loading weights' -e '^$' "$out/$name.txt" | tail -n "$lines" | cut -c1-3000
}

machine='import torch, transformers, numpy; print(torch.cuda.get_device_name(), torch.__version__, transformers.__version__, numpy.__version__)'
precision='from tests.benchmarks.precision_ways import main
for shape in ("gpu", "large"):
    for way in ("bf16", "fp16"):
        main(way, shape, "cuda")'
# Each test starts programs: two threads for each of eight processes. An interrupt shows what has failed by then.
pytest=(env OMP_NUM_THREADS=2 "$python" -m pytest --noconftest -p no:cacheprovider -o filterwarnings= -q -n 8 --tb=short --durations=8)

step machine 40 1 "$python" -c "$machine"
step kernels 100 3 "$python" -m analyzers.numerics
step tests 110 12 "${pytest[@]}" tests/gpu tests/numerics/test_torch_kernels.py tests/numerics/test_torch_pairs.py
step counting 100 1 "$python" -m tests.benchmarks.gpu_counting
step precision 80 4 "$python" -c "$precision"
for vocabulary in 32000 128000; do
	step "exit-$vocabulary" 40 1 "$python" -m tests.benchmarks.exit_ways "$vocabulary"
done
step profile 40 45 "$python" -m tests.gpu.profiled
if [ -n "$2" ]; then step more 70 5 "$python" "$2"; fi
