# Compares what tests cost with the list of those that may cost much. Input: the list (test, reason), then the costs (test,
# wall ms, CPU ms, programs).
BEGIN { max_cpu = 5000; max_wall = 20000; max_listed = 15 }

FNR == NR {
  if ($0 ~ /^#/ || $0 == "") next
  if (NF < 2 || $2 == "") problem($1 " is listed without a reason")
  listed[$1] = 1
  if (++count > max_listed) problem("more than " max_listed " tests are listed: make one faster before you add one")
  next
}

{
  seen[$1] = 1
  if (($3 > max_cpu || $2 > max_wall) && !($1 in listed)) problem(sprintf("%s took %.1f s of CPU time in %.1f s", $1, $3 / 1000, $2 / 1000))
}

function problem(text) { print text; problems++ }

END {
  for (test in listed) if (!(test in seen)) problem(test " is listed and did not run")
  exit problems > 0
}
