#!/usr/bin/env bash
# Install a wheel or an sdist into an empty environment, as a new user would, and train ten steps with it; then install
# the extra hf, and train on a dataset of the package datasets.
#   tests/try_package.sh python3 dist/manyviews-0.1.0-py3-none-any.whl
set -euo pipefail
python=$1 package=$(realpath "$2") here=$(realpath "$(dirname "$0")")
constraints=$here/../constraints.txt
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
"$python" -m venv environment
environment/bin/python -m pip install --quiet --disable-pip-version-check -c "$constraints" "$package"
environment/bin/manyviews train --help > /dev/null
environment/bin/manyviews train --max-instances 160 --batch-size 16 --epochs 1 --monitor-size 0 --output run
environment/bin/manyviews report run -o report.html
test "$(wc -l < run/metrics.csv)" -ge 11 && test -s run/encoder.safetensors && test -s report.html
environment/bin/python -m pip install --quiet --disable-pip-version-check -c "$constraints" "$package[hf]"
environment/bin/python "$here/try_hf.py"
test -s encoder/model.safetensors && test -s encoder/config.json
echo "$(basename "$package"): installed into an empty environment, trained ten steps, wrote a report, trained on a dataset of Hugging Face and saved the encoder"
