-- What an account has, oldest first.
CREATE INDEX asked_by_account ON asked (account, expires_at, bytes) WHERE done = 1;
