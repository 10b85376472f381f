-- How far this file is as a copy of PostgreSQL: one row. Without PostgreSQL there is none.
CREATE TABLE copy (
  only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
  holder   TEXT NOT NULL,     -- id of the data directory
  epoch    INTEGER NOT NULL,  -- in which it held the data last; 0: never
  version  INTEGER NOT NULL   -- last change of rows that the file has
) STRICT;
