# Functions that scripts/run and scripts/test share. Source it in bash with `set -euo pipefail`, with the
# repository as the working directory.
# shellcheck shell=bash

CACHE_DIR=${XDG_CACHE_HOME:-$HOME/.cache}/model-gateway
# Outside the clone, so that a clone stays small and a second one builds fast.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$CACHE_DIR/target}

say() { printf '%s\n' "$*" >&2; }
fail() { say "$(basename "$0"): $*"; exit 1; }

# as_root COMMAND ARGS...
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "this needs root, and there is no sudo: $*"
  fi
}

# install_missing PROBE=PACKAGE...: installs with apt each package whose program PROBE is missing.
install_missing() {
  local pair missing=()
  for pair in "$@"; do
    command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  install_packages "${missing[@]}"
}

install_packages() {
  command -v apt-get >/dev/null || fail "please install: $*"
  say "Installing by apt: $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq </dev/null >&2
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null >&2
}

# The tools that the build needs: a C and C++ compiler, make and cmake (TLS compression, SQLite, jemalloc).
install_build_tools() {
  install_missing cc=build-essential c++=build-essential make=build-essential cmake=cmake curl=curl
  # The shell of a script often lacks the PATH entry of a toolchain that rustup installed.
  command -v cargo >/dev/null || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
  command -v cargo >/dev/null || fail "Rust is missing: see https://rustup.rs"
  node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null || fail "Node.js 20 or newer is missing"
}

# binary_path PROFILE
binary_path() {
  if [ "$1" = dev ]; then
    echo "$CARGO_TARGET_DIR/debug/model-gateway"
  else
    echo "$CARGO_TARGET_DIR/$1/model-gateway"
  fi
}

# json_field NAME: prints the field of the JSON document on standard input.
json_field() {
  node -e '
    const value = JSON.parse(require("fs").readFileSync(0, "utf8"))[process.argv[1]];
    if (value === undefined) process.exit(1);
    console.log(value);
  ' "$1"
}

# free_ports N: prints ports that the system chose. All are held open at once, so no two are the same.
free_ports() {
  node -e '
    const net = require("net");
    const servers = Array.from({ length: Number(process.argv[1]) }, () => net.createServer().listen(0, "127.0.0.1"));
    Promise.all(servers.map((s) => new Promise((done) => s.once("listening", done)))).then(() => {
      console.log(servers.map((s) => s.address().port).join(" "));
      servers.forEach((s) => s.close());
    });
  ' "$1"
}
