# What the stages of scripts/test do. Sourced by tests/runner/stage; each function is one stage. Read next: plans.sh.
# shellcheck shell=bash

check_scripts_and_locks() {
  local file
  for file in scripts/* tests/runner/* .ci/run; do
    [ -f "$file" ] || continue
    if [[ $file == *.py ]] || head -n 1 "$file" | grep -q python3; then
      python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$file"
    elif [[ $file == *.sh ]] || head -n 1 "$file" | grep -q bash; then
      bash -n "$file"
    fi
  done
  # A lock file that names a registry would tie every build to the registry of the machine that wrote it.
  for file in tests/{sdk/node,browser,agents,servers}/package-lock.json; do
    test -s "$file"
    if grep -n '"resolved"' "$file"; then
      say "$file names a registry: create it again with npm install in its directory"
      return 1
    fi
  done
}

# Checks the licences, sources and checksums of everything in the binary, and the bill of materials. For known
# vulnerabilities see scripts/supply-chain.
check_dependencies() {
  scripts/licenses --check
  scripts/sbom --check
}

# Each alert fires on its first incident, and none fires on a quiet day.
test_alerts() {
  promtool test rules deploy/prometheus/alerts_test.yaml
  promtool check config deploy/prometheus/prometheus.yml deploy/prometheus/compose.yml
}

check_format() { cargo fmt --all --check; }

# At the lowest priority: the tests beside it wait for times.
lint() { nice cargo clippy --workspace --all-targets --locked --quiet -- -D warnings; }
lint_product() { cargo clippy --workspace --locked --quiet -- -D warnings; }

# The only build: the tests, and the program that the integration tests and all later stages run. `cargo build` would build
# the program again, since the tests' packages enable features of shared packages. ARGS select what is built.
build() {
  cargo metadata --locked --format-version 1 --filter-platform "$(host)" >"$RUN_DIR/metadata.json"
  cargo nextest list --workspace --locked "$@" --list-type binaries-only --message-format json --cargo-quiet \
    >"$RUN_DIR/binaries.json"
  test -x "$MODEL_GATEWAY_BIN"
}

host() { rustc -vV | sed -n 's/^host: //p'; }

# rust_tests PROFILE THREADS_PER_CORE ARGS...: runs tests that are built. Profiles: .config/nextest.toml.
rust_tests() {
  local profile=$1 threads=$(($2 * CORES))
  shift 2
  # The long run looks for new random cases; a change is not judged by those that it happens to meet.
  [ -n "${GATEWAY_LONG:-}" ] || export PROPTEST_RNG_SEED=1
  cargo nextest run --profile "$profile" --test-threads "$threads" --binaries-metadata "$RUN_DIR/binaries.json" \
    --cargo-metadata "$RUN_DIR/metadata.json" "$@" 2>&1 | grep -v '^info: experimental'
}

# Vendors that speak TLS and HTTP/2, like the real ones.
rust_tests_over_h2() { GATEWAY_TEST_VENDORS=h2 rust_tests h2 2 "$@"; }

doc_tests() { nice cargo test --doc --workspace --locked --quiet; }

# Each suite has a world of its own: simulated vendors, a gateway, data. ARGS: files of the suite.
python_sdks() { GATEWAY_TEST_SHOP=stripe GATEWAY_TEST_ENDPOINTS=all node tests/world/run.mjs "$(python_venv)/bin/python" -m pytest -q "${@:-tests/sdk/python}"; }

node_tests() { node tests/world/run.mjs node --test --test-reporter=dot "$@"; }
node_sdks() { GATEWAY_TEST_SHOP=stripe GATEWAY_TEST_ENDPOINTS=all node_tests --test-concurrency=4 "${@:-tests/sdk/node/*.test.mjs}"; }
browser() { GATEWAY_TEST_SHOP=stripe node_tests --test-concurrency=2 "${@:-tests/browser/*.test.mjs}"; }
agents() { node_tests --test-concurrency=2 "${@:-tests/agents/*.test.mjs}"; }
agents_with_vendors() { GATEWAY_TEST_VENDORS=dialects agents tests/agents/vendors.mjs; }
# Servers that others wrote, with packages of their own.
servers_of_others() {
  local servers
  servers=$(servers_venv)
  PATH=$servers/bin:$PATH PYTHONPATH=tests/sdk/python GATEWAY_TEST_SERVERS=tests/servers/servers.json node tests/world/run.mjs \
    "$(python_venv)/bin/python" -m pytest -q -c tests/sdk/python/pytest.ini tests/servers
}
# The tests of run.mjs and its ports.
test_world() { node --test --test-reporter=dot tests/world/*.test.mjs; }

over_h2() { GATEWAY_TEST_VENDORS=h2 "$@"; }

try_out() {
  scripts/run --check
  scripts/run --check --cluster
  scripts/run --check --cluster --postgres
}

# long_tests PART: the tests that are marked `#[ignore = "long PART: …"]`.
long_tests() {
  local names
  names=$(marked_tests "$1" | sed 's/.*/test(\/(^|::)&$\/)/' | paste -sd'|' | sed 's/|test(/ | test(/g')
  [ -n "$names" ] || fail "no test is marked for the part $1"
  GATEWAY_LONG=1 rust_tests long 1 --run-ignored only -E "$names"
}

# marked_tests PART: the names of the tests of this part of the long run.
marked_tests() {
  grep -rhA 4 --include='*.rs' "#\[ignore = \"long $1:" src crates tests |
    sed -nE 's/^ *(pub )?(async )?fn ([a-z0-9_]+)\(.*/\3/p'
}

scripts_run_once() { scripts/run --check; }

# The modules that ask `is_long()`.
long_variants() {
  local modules
  modules=$(grep -l 'is_long()' tests/gateway/*.rs | sed 's#.*/##; s#\.rs$##' | paste -sd'|')
  GATEWAY_LONG=1 rust_tests long 2 -E "binary(gateway) & test(/^($modules)::/)"
}

long_simulation() {
  export GATEWAY_LONG=1 PROPTEST_CASES="${PROPTEST_CASES:-20000}"
  rust_tests long 1 -E 'binary(ledger_simulation) | binary(properties)'
  long_tests simulation
}
