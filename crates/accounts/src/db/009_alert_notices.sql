-- What a rule that fired has sent: ids of outgoing_mail and webhook_delivery, whose rows are deleted after some days; empty:
-- sent, but not known as what. Both NULL: nothing was sent, because there was no destination.
ALTER TABLE alert_state ADD COLUMN mail TEXT;
ALTER TABLE alert_state ADD COLUMN delivery TEXT;
-- When the account holder dismissed the banner.
ALTER TABLE alert_state ADD COLUMN seen_at_ms INTEGER;

-- Of before: what fired in an account that has a destination was sent.
UPDATE alert_state SET mail = '' WHERE account IN (
  SELECT id FROM account WHERE verified_at_ms IS NOT NULL AND alerts LIKE '%"mail":true%'
  UNION SELECT account FROM webhook WHERE disabled_at_ms IS NULL);
