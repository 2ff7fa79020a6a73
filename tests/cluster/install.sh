#!/usr/bin/env bash
# What the cluster tests need next to the package: Debian's network tools and Slurm, and MPICH in an environment of its own.
#   tests/cluster/install.sh PYTHON [MPICH_ENVIRONMENT]
# As root it installs; as another user it leaves Debian's packages out, and the tests that need them are skipped.
set -euo pipefail
python=$1
mpich=${2:-.venv-mpich}

packages=(iproute2 munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins)
missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    else
        echo "not installed: ${missing[*]} (needs root and apt-get); tests that need them are skipped" >&2
    fi
fi

# Both MPIs call their launcher mpiexec, so they cannot share an environment; everything else is shared by a path file.
if [ ! -e "$mpich/.installed" ]; then
    "$python" -m venv --without-pip "$mpich"
    "$python" -m pip --python "$mpich/bin/python" install --quiet --disable-pip-version-check mpich mpi4py
    shared=$("$python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
    own=$("$mpich/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
    # sitedir, not a bare path: an editable install of parcade lies behind a path file of its own.
    echo "import site; site.addsitedir('$shared')" > "$own/shared.pth"
    touch "$mpich/.installed"
fi
