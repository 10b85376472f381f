-- Credits that were bought from a payment provider: bonus credits, refunds and disputes of payments, and redeemed codes. As in
-- 012, the constraint is changed in place. It accepts more than before, so every row still fulfils it.
PRAGMA writable_schema = ON;

UPDATE sqlite_schema SET sql = replace(sql,
    'kind = ''topup'' OR kind = ''lapse'')',
    'kind = ''topup'' OR kind = ''lapse'' OR kind = ''bonus'' OR kind = ''payment_refund'' OR kind = ''dispute'' OR kind = ''code'')')
  WHERE type = 'table' AND name = 'entry';

-- Reads the schema anew.
PRAGMA writable_schema = RESET;
