# Compares what tests cost with the list of those that may cost much. Input: the list (test, reason), then the costs (test,
# wall ms, CPU ms, programs). Variables: speed in percent, warn, fail, enforced, whole (all tests ran).
BEGIN { max_cpu = 5000 * speed / 100; max_wall = 40000 * speed / 100; max_listed = 15 }

FNR == NR {
  if ($0 ~ /^#/ || $0 == "") next
  if (NF < 2 || $2 == "") problem($1 " is listed without a reason")
  listed[$1] = 1
  if (++count > max_listed) problem("more than " max_listed " tests are listed: make one faster before you add one")
  next
}

{
  seen[$1] = 1
  if ($1 in listed) next
  percent = 100 * ($3 / max_cpu > $2 / max_wall ? $3 / max_cpu : $2 / max_wall)
  text = sprintf("%s took %.1f s of CPU time in %.1f s", $1, $3 / 1000, $2 / 1000)
  if (percent > fail && enforced) problem(text)
  else if (percent > 100) print "WARNING: slow test: " text
}

function problem(text) { print "OVER BUDGET: slow test: " text; problems++ }

END {
  if (whole) for (test in listed) if (!(test in seen)) problem(test " is listed and did not run")
  exit problems > 0
}
