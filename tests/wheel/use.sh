#!/usr/bin/env bash
# Installs a wheel in an empty environment and uses it as a user without the checkout would.
#   tests/wheel/use.sh PYTHON WHEEL
# The environment lies in a temporary directory; PIP_FIND_LINKS and the like apply as usual.
set -euo pipefail
python=$(realpath -s "$1")
wheel=$(realpath "$2")
here=$(realpath "$(dirname "$0")")

"$python" "$here/contents.py" "$wheel"

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
unset PYTHONPATH
"$python" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check ${TORCH:-torch==2.13.0} ${TORCH_INDEX:-}
env/bin/python -m pip install --quiet --disable-pip-version-check "$wheel"
PATH="$place/env/bin:$PATH"

python -c 'import parcade, sys; sys.exit(not parcade.__file__.startswith(sys.prefix))'
parcade --help
parcade games | grep -w pong
parcade train tiny_catch --time-limit 20s --target-score 0.9 --run-dir catch
parcade eval catch --episodes 10
parcade train pong --time-limit 20s --num-envs 4 --run-dir pong
parcade eval pong --episodes 1
parcade eval zoo:breakout --episodes 2
# In real time an episode takes two minutes; that it still plays after a minute is enough.
timeout 60 script -qec "parcade watch zoo:pong --episodes 1" /dev/null >watched && code=0 || code=$?
[ "$code" = 124 ]
grep -q "score" watched
echo "The wheel works without the checkout."
