-- The audit log by what a line is about, and by who acted.

CREATE INDEX audit_object ON audit(object, seq);
CREATE INDEX audit_actor ON audit(actor, seq);
CREATE INDEX audit_act ON audit(act, seq);
CREATE INDEX audit_time ON audit(at_ms, seq);
