#!/bin/sh
# Both bundles, and the licences of what is in them; arguments go to vite.
set -eu
vite build "$@"
vite build --mode standalone "$@"
cd node_modules
for package in @dagrejs/dagre @xyflow/react @xyflow/system classcat d3-color d3-dispatch d3-drag d3-ease d3-interpolate \
    d3-selection d3-timer d3-transition d3-zoom react react-dom scheduler use-sync-external-store zustand; do
    echo "--- $package"
    cat "$package"/LICENSE*
done >"${LOGIO_PAGE_OUT:-../../airflow_logio/ui/built}/LICENSES.txt"
