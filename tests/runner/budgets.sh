# Measures the stages and compares them with their budgets. Sourced by tests/runner/inside.
# shellcheck shell=bash

# Budgets are for a machine with this number of cores, on which the loop of measure_speed takes this time.
BUDGET_CORES=2
BUDGET_LOOP_MS=250
# Number of times that the loop is measured before the stages, and after them.
SPEED_SAMPLES=8
# Above these percentages of its budget a stage warns, and fails. The speed is measured before and after the stages, not between
# them: on a shared machine the same tests took 829 and 1 091 s of CPU time at the same measured speed.
WARN_PERCENT=120
FAIL_PERCENT=200
# If other processes use more than this percentage of the machine, costs say nothing: they are shown and fail nothing.
MAX_OTHERS_PERCENT=12
# A stage that takes longer hangs, and is ended: in seconds, also for a busy machine.
STAGE_LIMIT=7200

# Time that the processors of this machine have been busy, in ms.
busy_ms() {
  local user nice system irq softirq steal
  read -r _ user nice system _ _ irq softirq steal _ </proc/stat
  echo $(((user + nice + system + irq + softirq + steal) * 1000 / $(getconf CLK_TCK)))
}

# Sets CHILDREN_MS: the CPU time of the ended children of this shell. It must not be called in a subshell, which has none.
measure_children() {
  local user system value minutes seconds sum=0
  times >"$RUN_DIR/times.$BASHPID"
  { read -r _ && read -r user system; } <"$RUN_DIR/times.$BASHPID"
  for value in "$user" "$system"; do
    value=${value%s}
    minutes=${value%m*} seconds=${value#*m}
    sum=$((sum + minutes * 60000 + 10#${seconds/./}))
  done
  CHILDREN_MS=$sum
}

# Sets SPEED: the CPU time of a loop on this machine, as a percentage of that on the machine of the budgets, and at least 100. The
# slowest of all measurements counts: a shared machine can be half as fast a minute later.
SPEED=100
measure_speed() {
  local TIMEFORMAT=%3U user speed sample
  for ((sample = 0; sample < SPEED_SAMPLES; sample++)); do
    user=$({ time for ((i = 0; i < 200000; i++)); do :; done; } 2>&1)
    speed=$((10#${user/./} * 100 / BUDGET_LOOP_MS))
    [ $speed -le $SPEED ] || SPEED=$speed
  done
}

begin_measuring() {
  measure_speed
  STARTED_BUSY=$(busy_ms)
  STARTED=$(now_ms)
  echo "=== $CORES cores, $((10000 / SPEED)) % of the speed that the budgets are for"
}

now_ms() { echo $((${EPOCHREALTIME/./} / 1000)); }

# stage NAME WALL CPU PROGRAMS FUNCTION ARGS...: runs one stage. Budgets: wall time and CPU time in seconds, number of
# programs of ours (- where nothing counts them).
stage() {
  local name=$1 wall=$2 cpu=$3 programs=$4
  shift 4
  local file status=0 started
  file=$RUN_DIR/$(tr ' /' '--' <<<"$name")
  started=$(now_ms)
  # In a shell of its own, whose children are those of this stage.
  (
    PROGRAMS_LOG=$file.programs TEST_COSTS=$file.costs STAGE_FILE=$file \
      timeout --foreground --kill-after 30 $STAGE_LIMIT tests/runner/stage "$@" </dev/null >"$file.log" 2>&1 || status=$?
    measure_children
    echo $CHILDREN_MS >"$file.cpu"
    exit $status
  ) || status=$?
  wall_ms=$(($(now_ms) - started))
  [ $status != 124 ] || echo "the stage was ended at its limit of $STAGE_LIMIT s" >>"$file.log"
  local started_programs=-
  [ "$programs" = - ] || started_programs=$(count_programs "$file")
  printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$name" $status $wall_ms "$wall" "$(<"$file.cpu")" "$cpu" \
    "$started_programs" "$programs" >>"$RUN_DIR/results"
  {
    flock 9
    echo
    echo "=== $name"
    cat "$file.log"
    if [ $status = 0 ]; then
      echo "=== $name: passed in $((wall_ms / 1000)) s, with $(($(<"$file.cpu") / 1000)) s of CPU time"
    else
      echo "=== $name: FAILED with status $status after $((wall_ms / 1000)) s"
    fi
  } 9>>"$RUN_DIR/printing"
  return 0
}

# Number of programs of a stage: those that each test counted, and those of the stage itself.
count_programs() {
  local total=0
  [ ! -e "$1.costs" ] || total=$(awk -F "\t" "{sum += \$4} END {print sum + 0}" "$1.costs")
  [ ! -e "$1.programs" ] || total=$((total + $(wc -l <"$1.programs")))
  echo "$total"
}

# built: whether the build has passed. Says so if the tests do not run.
built() { passed "build" || { echo && echo "=== the build failed: no test of the program runs" && return 1; }; }

# passed NAME: whether this stage has run and passed.
passed() { awk -F '\t' -v name="$1" '$1 == name && $2 == 0 {found = 1} END {exit !found}' "$RUN_DIR/results"; }

# Keeps what each test and each stage of the last run cost, for whoever wants to make the tests faster.
keep_costs() {
  mkdir -p "$CACHE_DIR/last-run"
  cp "$RUN_DIR"/*.costs "$RUN_DIR/results" "$CACHE_DIR/last-run/" 2>/dev/null || true
}

# report_costs PLAN: prints all stages with their costs, and ends the run: with 0 if none failed and none is over its budget.
report_costs() {
  local others own wall
  wall=$(($(now_ms) - STARTED))
  measure_children
  own=$CHILDREN_MS
  others=$((($(busy_ms) - STARTED_BUSY - own) * 100 / (wall * CORES)))
  [ $others -ge 0 ] || others=0
  measure_speed
  echo
  echo "=== costs: wall and CPU time in s, programs started; in brackets the budgets, at $((10000 / SPEED)) % of their machine's speed"
  local enforced=$((others <= MAX_OTHERS_PERCENT)) has_slow_tests=0 whole=0
  [ "$1" != full ] || whole=1
  cat "$RUN_DIR"/Rust-tests*.costs >"$RUN_DIR/tests.costs" 2>/dev/null || true
  awk -F '\t' -v speed=$SPEED -v fail=$FAIL_PERCENT -v enforced=$enforced -v whole="$whole" \
    -f tests/runner/slow-tests.awk tests/runner/slow-tests.tsv "$RUN_DIR/tests.costs" || has_slow_tests=1
  awk -F '\t' -v speed=$SPEED -v has_slow_tests=$has_slow_tests -v cores="$CORES" -v budget_cores=$BUDGET_CORES -v warn=$WARN_PERCENT -v fail=$FAIL_PERCENT \
    -v enforced=$enforced -v total_wall=$((wall / 1000)) -v own=$((own / 1000)) -v others=$others \
    -f tests/runner/report.awk "$RUN_DIR/results"
}
