# Which stages run, in which lanes, with which budgets. Sourced by tests/runner/inside and scripts/test.
# shellcheck shell=bash disable=SC2046

# Budgets of each stage: wall time and CPU time in seconds on two cores, and programs started. They are what the stage took
# when it was last changed, and a little more: lower them when it gets faster.
plan_full() {
  cheap_checks &
  #     name                                       wall  CPU  programs
  stage "build"                                     $(build_budget 280 420)  - build
  if built; then
    { stage "Rust tests"                            760  760  4700 rust_tests measured 4 ; } &
    { stage "SDKs for Python"                       460   90  170 python_sdks
      stage "SDKs for Node.js"                      100   45  70 node_sdks
      stage "Rust tests over HTTP/2"                150   70  430 rust_tests_over_h2
      stage "SDKs for Node.js over HTTP/2"          100   45  70 over_h2 node_sdks ; } &
    { stage "dashboard in a browser"                400  180  90 browser
      stage "terminal agents"                       180   70  100 agents
      stage "scripts/run"                            30   10  - try_out ; } &
    { stage "lints"                                 850  280  - lint
      stage "documentation tests"                    90   10  - doc_tests ; } &
  fi
  wait
}

# build_budget WALL CPU: prints them, or none for a first build, which also builds the dependencies.
build_budget() { if [ -d "$CARGO_TARGET_DIR/debug/deps" ]; then echo "$1 $2"; else echo "- -"; fi; }

cheap_checks() {
  stage "scripts and lock files"                     10    5  - check_scripts_and_locks
  stage "licences and bill of materials"             30   10  - check_dependencies
  stage "alert rules"                                10    5  - test_alerts
  stage "format"                                     20   10  - check_format
  stage "ports of the JavaScript worlds"             10    5  - test_world
}

# What one runs while writing. From each suite some tests that would notice if it did not work at all.
plan_quick() {
  stage "format"                                     10   10  - check_format
  stage "build"                                     $(build_budget 120 200)  - build --lib --bins --test gateway --test vectors --test stores --test tidy \
    --test ledger_simulation
  if built; then
    { stage "Rust tests"                             90  120  500 rust_tests quick 3 ; } &
    { stage "SDKs for Python"                        30   20  400 python_sdks tests/sdk/python/test_chat.py
      stage "SDKs for Node.js"                       30   20  400 node_sdks tests/sdk/node/messages.test.mjs ; } &
    { stage "dashboard in a browser"                 60   30  400 browser tests/browser/setup.test.mjs
      stage "scripts/run"                            20   10  - scripts_run_once ; } &
    stage "lints"                                   120  120  - lint_product
  fi
  wait
}

# The parts of the long run: name, time on two cores in minutes, what it is and why it is not in the short run.
LONG_PARTS='
kills          8  one process killed again and again under load: the short run has one such campaign
installation  18  edges, sidecars, Redis and PostgreSQL killed and cut off: the short run has one such campaign
controls       1  the protection is taken away, and the test must see losses
simulation    18  the ledger simulation, properties and races with many more seeds
load           5  crowds, floods and bodies of many megabytes
variants      40  the tests of the short run that have a larger variant, with that
h2            10  all tests of the gateway with vendors that speak HTTP/2
agents         4  Claude Code, Codex and opencode with each vendor that the simulator plays: large programs, started often
sdks-h2        2  the SDKs for Python over HTTP/2, which the short run uses over HTTP/1.1 only
servers        3  real weights for embeddings and transcriptions, llama.cpp, a vendor that counts nothing: 800 MB of packages
'

list_long_parts() {
  echo "Parts of the long run, with minutes on two cores:"
  sed '/^$/d; s/^/  /' <<<"$LONG_PARTS"
}

has_long_part() { grep -q "^$1 " <<<"$LONG_PARTS"; }

plan_long() {
  local part
  stage "build" $(build_budget 180 260) - build
  built || return 0
  for part in $(sed -n 's/^\([a-z0-9-]*\) .*/\1/p' <<<"$LONG_PARTS"); do
    [[ $1 = all || $1 = "$part" ]] || continue
    case $part in
      simulation) stage "long simulation" 1800 3000 - long_simulation ;;
      variants) stage "long variants" 2400 3600 - long_variants ;;
      h2) GATEWAY_TEST_VENDORS=h2 stage "long h2" 900 1500 - rust_tests long 3 -E 'binary(gateway)' ;;
      agents) stage "long agents" 1200 900 - agents_with_vendors ;;
      servers) stage "long servers" 300 300 - servers_of_others ;;
      sdks-h2) stage "long sdks-h2" 300 200 - over_h2 python_sdks ;;
      *) stage "long $part" 1800 3600 - long_tests "$part" ;;
    esac
  done
}
