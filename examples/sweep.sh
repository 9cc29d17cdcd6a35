#!/bin/sh
# A sweep: COMMAND once for each index of one array, with the index as its last argument; then a table of how each ended.
# Ends with the exit code of the first that did not end well. Ctrl-C withdraws what has not ended.
#
#     examples/sweep.sh ENV INDICES COMMAND…        e.g. examples/sweep.sh alice 0-9 python train.py --seed
: "${3:?usage: examples/sweep.sh ENV INDICES COMMAND…}"
env=$1
indices=$2
shift 2

sweep=$(nodemgr submit --env "$env" --gpus 1 --array "$indices" --time 2h --name sweep -- \
    sh -c 'exec "$@" "$NODEMGR_ARRAY_INDEX"' sweep "$@") || exit
trap 'nodemgr queue withdraw --env "$env" "$sweep"; exit 130' INT

nodemgr wait --env "$env" "$sweep"
code=$?
nodemgr history --env "$env" "$sweep"
exit "$code"
