# What the stand-ins for service managers share. A service NAME has two files in INSTALLS_STATE:
# NAME.pid, and once it has ended, NAME.status.

# supervise NAME COMMAND...: starts a command, which writes its own process id, in the background.
supervise() {
  local name=$1
  shift
  rm -f "$INSTALLS_STATE/$name.status"
  (
    status=0
    "$@" || status=$?
    echo $status >"$INSTALLS_STATE/$name.status"
  ) </dev/null >>"$INSTALLS_STATE/$name.log" 2>&1 &
}

# stop_service NAME SECONDS: ends it as the real manager does, and prints its exit status.
stop_service() {
  local name=$1 left=$(($2 * 10))
  kill -TERM "$(cat "$INSTALLS_STATE/$name.pid")"
  until [ -s "$INSTALLS_STATE/$name.status" ]; do
    ((left-- > 0)) || fail "$name still runs $2 s after SIGTERM"
    sleep 0.1
  done
  echo "$name ended with status $(cat "$INSTALLS_STATE/$name.status")"
}

fail() {
  echo "${0##*/}: $*" >&2
  exit 1
}
