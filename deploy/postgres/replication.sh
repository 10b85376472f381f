#!/bin/bash
# Runs once, when the primary's database is created: a standby may connect, and each commit waits for it.
set -euo pipefail
echo "host replication all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" \
  -c "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (standby)'"
