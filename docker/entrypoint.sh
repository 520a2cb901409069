#!/bin/bash
# The container's first process: it passes signals on to `skytrain` and collects processes that have lost their parent,
# which Python as the first process would leave as zombies.
command='' early=''
forward() { # a signal may arrive before the command has started
  if [ -n "$command" ]; then kill "-$1" "$command"; else early=$1; fi
}
trap 'forward TERM' TERM INT # a command in the background ignores INT
trap 'forward USR1' USR1
skytrain "$@" &
command=$!
if [ -n "$early" ]; then kill "-$early" "$command"; fi
while kill -0 "$command" 2> /dev/null; do # a trap ends `wait` early
  wait "$command"
done
wait "$command" # the status is kept: after a trap the first one may have been the signal's
