# What scripts/test installs before the tests run. Sourced by scripts/test, after scripts/lib.sh.
# shellcheck shell=bash

# Everything that needs the network happens here. A second run finds all of it in its place and needs no network.
# Call it with the plan.
install_what_tests_need() {
  install_build_tools
  install_missing git=git kill=procps openssl=openssl ip=iproute2 faketime=faketime chromium=chromium python3=python3 \
    unshare=util-linux mount=mount strace=strace redis-cli=redis-tools systemd-analyze=systemd
  install_services redis-server=redis-server redis-sentinel=redis-sentinel promtool=prometheus /usr/sbin/nginx=nginx \
    /usr/sbin/haproxy=haproxy caddy=caddy
  install_postgres
  # A minimal toolchain lacks these two.
  cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
  cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
  cargo fetch --locked --quiet
  use_tools
  local folder
  for folder in tests/sdk/node tests/browser tests/agents; do node_modules "$folder"; done
  # Large, and for one part of the long run alone.
  if [[ $1 = long-servers || $1 = long-all ]]; then
    install_missing espeak-ng=espeak-ng
    servers_venv >/dev/null
    node_modules tests/servers
  fi
}

# Whether this process may make the namespaces in which the tests run.
can_make_namespaces() {
  is_root && unshare --mount --pid --net --ipc --fork --kill-child=KILL --mount-proc true 2>/dev/null
}

# Whether `/` is a folder of another machine's, on which nothing is mounted: mount namespaces cannot be made there.
is_in_chroot() { ! mountpoint --quiet /; }

# in_chroot FOLDER WORKDIR COMMAND...: runs the command with the root folder mounted on FOLDER, and FOLDER as root.
in_chroot=(unshare --mount --propagation unchanged bash -euc '
  mount --rbind / "$1"
  mount --make-rprivate "$1"
  exec chroot "$1" env --chdir "$2" "${@:3}"' in_chroot)
