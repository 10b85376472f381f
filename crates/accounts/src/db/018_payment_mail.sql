-- The kinds of mail are those of `src/notify/mail/kind.rs`. The table had a list of its own, without notices about payments: they
-- were neither sent nor shown where mail was set up. Only the list goes, so the table need not be copied
-- (https://www.sqlite.org/lang_altertable.html, "Making Other Kinds Of Table Schema Changes").
PRAGMA writable_schema = ON;

UPDATE sqlite_schema SET sql = replace(sql,
    ' CHECK(kind IN (''reset'', ''setup'', ''verify'', ''low_balance'', ''spend'', ''webhook_disabled'', ''test''))', '')
  WHERE type = 'table' AND name = 'outgoing_mail';

-- Reads the schema anew.
PRAGMA writable_schema = RESET;
