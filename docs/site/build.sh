#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the documentation as a site.
#
#   docs/site/build.sh              into build/site
#   docs/site/build.sh serve        and serves it at http://127.0.0.1:8000, built anew when a page changes
#
# Installs MkDocs Material into build/site-venv the first time; needs python3 with venv.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=${WEFT_SITE_VENV:-$PWD/build/site-venv}
if [ ! -x "$venv/bin/mkdocs" ]; then
  mkdir -p "$(dirname "$venv")"
  python3 -m venv "$venv" || { echo "python3 -m venv failed: on Debian, apt install python3-venv" >&2; exit 1; }
  "$venv/bin/pip" install -q -r docs/site/requirements.txt
fi
export NO_MKDOCS_2_WARNING=1
if [ "${1:-}" = serve ]; then exec "$venv/bin/mkdocs" serve -f docs/site/mkdocs.yml; fi
"$venv/bin/mkdocs" build -q --strict -f docs/site/mkdocs.yml -d "$PWD/build/site"
echo "build/site/index.html"
