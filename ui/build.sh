#!/bin/sh
# Both bundles, and the licences of what is in them; arguments go to vite.
set -eu
vite build "$@"
vite build --mode standalone "$@"
node licenses.mjs >"${LOGIO_PAGE_OUT:-../airflow_logio/ui/built}/LICENSES.txt"
