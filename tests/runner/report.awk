# Prints the table of the stages. Input: name, status, wall ms, its budget in s, CPU ms, its budget in s, programs, their budget.

# `least`: by how much a value must exceed its budget. A stage of some seconds can wait a minute for programs that are not in memory.
function judge(what, value, budget, least,   percent) {
  if (budget == "-" || budget == 0) return
  percent = value * 100 / budget
  if (percent > fail && value - budget > least && enforced) { over[++overs] = sprintf("%s: %s %d, more than %d %% of the budget of %d", $1, what, value, fail, budget) }
  else if (percent > warn) warnings[++warned] = sprintf("%s: %s %d, more than %d %% of the budget of %d", $1, what, value, warn, budget)
}

{
  wall_budget = $4 == "-" ? "-" : int($4 * speed / 100 * (cores < budget_cores ? budget_cores / cores : 1))
  cpu_budget = $6 == "-" ? "-" : int($6 * speed / 100)
  printf "%-44s %-7s %5d (%4s) %5d (%4s) %6s (%5s)\n", $1, $2 == 0 ? "passed" : "FAILED", $3 / 1000, wall_budget, $5 / 1000, cpu_budget, $7, $8
  judge("wall time in s", $3 / 1000, wall_budget, 90)
  judge("CPU time in s", $5 / 1000, cpu_budget, 0)
  if ($7 != "-") judge("programs", $7, $8, 0)
  if ($2 == 0) passed++; else { failed++; reds[failed] = $1 }
}

END {
  printf "\nall in %d s, with %d s of CPU time: %d %% of %d cores; other processes used %d %%\n", total_wall, own, own * 100 / (total_wall * cores), cores, others
  if (!enforced) print "The machine was busy with other things: no stage fails for its costs."
  for (i = 1; i <= warned; i++) print "WARNING: " warnings[i]
  for (i = 1; i <= overs; i++) print "OVER BUDGET: " over[i]
  for (i = 1; i <= failed; i++) print "FAILED: " reds[i]
  if (overs || has_slow_tests) failed++
  printf "%d passed, %d failed\n", passed, failed
  exit failed > 0
}
