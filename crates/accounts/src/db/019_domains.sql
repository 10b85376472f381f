-- Domains that organisations claim: who proves a mailbox of one becomes a member. Only operators enter them.

CREATE TABLE domain_claim(
  -- In canonical form.
  domain TEXT NOT NULL PRIMARY KEY,
  account TEXT NOT NULL REFERENCES account(id),
  claimed_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX domain_claim_account ON domain_claim(account);
