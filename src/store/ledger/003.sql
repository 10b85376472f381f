-- Credit that processes other than the one that admits have set aside: a command about to take, a gateway that drains.
-- Whoever admits reads it in the same snapshot as the balance.
CREATE TABLE claim (
  boot    TEXT NOT NULL,
  account TEXT NOT NULL,
  paid    INTEGER NOT NULL,
  trial   INTEGER NOT NULL,
  PRIMARY KEY (account, boot)
) STRICT, WITHOUT ROWID;
