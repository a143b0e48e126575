#!/bin/sh
# Prints where the Python packages of the tests live: in the cache, shared by all checkouts.
echo "${SACCADE_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/saccade/venv}"
