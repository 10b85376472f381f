-- The same constraint on the kind of an entry, as comparisons: for a list of more than two values SQLite fills a temporary
-- table at each insert. What the column accepts does not change, so the table need not be copied
-- (https://www.sqlite.org/lang_altertable.html, "Making Other Kinds Of Table Schema Changes").
PRAGMA writable_schema = ON;

UPDATE sqlite_schema SET sql = replace(sql,
    'CHECK (kind IN (''trial'', ''grant'', ''topup'', ''refund'', ''adjust'', ''lapse'', ''debit'', ''void''))',
    'CHECK (kind = ''debit'' OR kind = ''void'' OR kind = ''refund'' OR kind = ''adjust'' OR kind = ''trial'' OR kind = ''grant'' OR kind = ''topup'' OR kind = ''lapse'')')
  WHERE type = 'table' AND name = 'entry';

-- Reads the schema anew.
PRAGMA writable_schema = RESET;
