#!/usr/bin/env bash
# Installs Debian's chromium for the browser tests, if there is none and this is root. PARCADE_CHROMIUM names another program.
set -euo pipefail
if [ -n "${PARCADE_CHROMIUM:-}" ] || command -v chromium >/dev/null; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends chromium >/dev/null
else
    echo "not installed: chromium (needs root and apt-get); the browser tests are skipped" >&2
fi
