#!/bin/bash
# Tests and figures that need a CUDA GPU, in about five minutes, on a machine that has Python's packages but no .venv:
#   tests/gpu/measure.sh FOLDER [PROGRAM]
# What a step prints is in FOLDER and, its end, on the screen. A step that takes longer than its seconds is ended, and the next begins.
# PROGRAM runs last. ONLY="kernels tests" runs only the steps of these names. GPU_BENCHMARK_SMALL=1 rehearses them on a CPU with small data,
# whose figures say nothing, and in ten times the time.
out=${1:?a folder for the results}
mkdir -p "$out" && out=$(realpath "$out") || exit
cd "$(dirname "$0")/../.." || exit
export PYTHONPATH="$PWD:$PYTHONPATH" PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=${OMP_NUM_THREADS:-8} MANTISSA_TEST_GPU=1
python=${PYTHON:-python3}
device=(--device cuda) slack=1
if [[ -n $GPU_BENCHMARK_SMALL ]]; then device=(--small --device cpu) slack=10; fi

step() { # name, seconds, lines to show, command
	local name=$1 seconds=$(($2 * slack)) lines=$3 begun=$SECONDS
	shift 3
	if [[ -n $ONLY && " $ONLY " != *" $name "* ]]; then return; fi
	timeout --foreground -s INT -k 10 "$seconds" "$@" >"$out/$name.txt" 2>&1
	echo "== $name: status $?, $((SECONDS - begun)) s, after $SECONDS s"
	grep -v -e 'Loading weights' -e '^$' "$out/$name.txt" | tail -n "$lines" | cut -c1-3000
}

machine='import torch, transformers, numpy
print(torch.cuda.is_available() and torch.cuda.get_device_name(), torch.__version__, transformers.__version__, numpy.__version__)'
# Each test starts programs: two threads for each of eight processes. An interrupt shows what has failed by then.
pytest=(env OMP_NUM_THREADS=2 "$python" -m pytest --noconftest -p no:cacheprovider -o filterwarnings= -q -n 8 --tb=short --durations=8)
bench=("$python" -m benchmarks "${device[@]}" --runs 2)

step machine 40 1 "$python" -c "$machine"
step kernels 100 3 "$python" -m analyzers.numerics
step tests 110 12 "${pytest[@]}" tests/gpu tests/numerics/test_torch_kernels.py tests/numerics/test_torch_pairs.py
step counting 120 8 "${bench[@]}" dtype sparsity memory-dtype memory-sparsity
step models 100 8 "${bench[@]}" conflict precision exit monitor
step heads 60 6 "${bench[@]}" head-exact head-hybrid
if [ -n "$2" ]; then step more 70 5 "$python" "$2"; fi
