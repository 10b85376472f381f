-- Who was a member of an organisation does not become one again by the domain of the address, under a new account neither.

CREATE TABLE past_member(
  account TEXT NOT NULL REFERENCES account(id),
  -- Keyed hash of the mailbox, as in past_trial.
  mailbox BLOB NOT NULL CHECK(length(mailbox) = 32),
  PRIMARY KEY(account, mailbox)
) STRICT, WITHOUT ROWID;
