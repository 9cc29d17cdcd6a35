BEGIN TRANSACTION;
CREATE TABLE current (kind TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
INSERT INTO "current" VALUES('assignment','2','{"number":2,"key":"hq-a09c79/1/c2/1","job_id":"c2","env":"ann","node":"gn2","node_generation":"1","gpus":2,"time_limit_ms":null,"answered":true,"began_ns":null,"node_job":"j2"}');
INSERT INTO "current" VALUES('assignment','3','{"number":3,"key":"hq-a09c79/1/c3/1","job_id":"c3","env":"bob","node":"gn2","node_generation":"1","gpus":2,"time_limit_ms":null,"answered":true,"began_ns":null,"node_job":"j3"}');
INSERT INTO "current" VALUES('assignment','4','{"number":4,"key":"hq-a09c79/1/c4/1","job_id":"c4","env":"ann","node":"gn1","node_generation":"1","gpus":1,"time_limit_ms":null,"answered":true,"began_ns":null,"node_job":"j4"}');
INSERT INTO "current" VALUES('counters','','{"name":"hq-a09c79","generation":1,"number":4,"job":4,"stamp_ns":1000000003,"is_copy":false,"is_restoring":false,"copied_job":0}');
INSERT INTO "current" VALUES('env','ann','{"name":"ann","gpus":8,"per_node":null,"quota":"{\"users\":[],\"groups\":[]}"}');
INSERT INTO "current" VALUES('env','bob','{"name":"bob","gpus":8,"per_node":null,"quota":"{\"users\":[],\"groups\":[]}"}');
INSERT INTO "current" VALUES('job','c2','{"job_id":"c2","env":"ann","user":"ann","gpus":2,"time_limit_ms":null,"max_restarts":0,"queued_ns":1000000001,"stage":"assigned","attempt":1,"restarts":0,"interruptions":0,"then":null,"resumes_ns":null,"assigned":2,"avoids":[],"uid":1000,"name":"runs","command":"true","submit_key":"1000:00000000000000000000000000000002","submitted_wall_ns":1700000000000000000}');
INSERT INTO "current" VALUES('job','c3','{"job_id":"c3","env":"bob","user":"bob","gpus":2,"time_limit_ms":null,"max_restarts":0,"queued_ns":1000000002,"stage":"assigned","attempt":1,"restarts":0,"interruptions":0,"then":null,"resumes_ns":null,"assigned":3,"avoids":[],"uid":1001,"name":"waits","command":"true","submit_key":"1001:00000000000000000000000000000003","submitted_wall_ns":1700000000000000000}');
INSERT INTO "current" VALUES('job','c4','{"job_id":"c4","env":"ann","user":"ann","gpus":1,"time_limit_ms":null,"max_restarts":0,"queued_ns":1000000003,"stage":"stopping","attempt":1,"restarts":0,"interruptions":0,"then":"queued","resumes_ns":null,"assigned":4,"avoids":[],"uid":1000,"name":"true","command":"true","submit_key":"1000:00000000000000000000000000000004","submitted_wall_ns":1700000000000000000}');
INSERT INTO "current" VALUES('node','gn1','{"name":"gn1","generation":"1","boot_id":"b","number":7,"gpus":1,"others":[],"drained":true,"why":"a new fan","quick":[],"lost":false,"key":"key of gn1","models":[]}');
INSERT INTO "current" VALUES('node','gn2','{"name":"gn2","generation":"1","boot_id":"b","number":6,"gpus":2,"others":[],"drained":false,"why":"","quick":[],"lost":false,"key":"key of gn2","models":[]}');
INSERT INTO "current" VALUES('word','1-E6vReV1=kpfaXp3Zf+OFS57[LrIex$)]4aiE=4','{"public":"1-E6vReV1=kpfaXp3Zf+OFS57[LrIex$)]4aiE=4","node":"gn3","expires_ns":3601000000000,"used_by":""}');
CREATE TABLE events (sequence INTEGER PRIMARY KEY, value TEXT NOT NULL, env TEXT NOT NULL);
CREATE TABLE gpu_minutes (number INTEGER PRIMARY KEY, minute INTEGER NOT NULL, uuid TEXT NOT NULL,
  utilization_percent REAL, memory_used_bytes INTEGER);
CREATE TABLE history (number INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL UNIQUE, env TEXT NOT NULL,
  ended_wall_ns INTEGER NOT NULL, state TEXT NOT NULL, command TEXT NOT NULL, ran_ms INTEGER, key TEXT NOT NULL,
  spec_id TEXT NOT NULL, size_bytes INTEGER NOT NULL, value TEXT NOT NULL);
INSERT INTO "history" VALUES(1,'c1','ann',1700000000000000000,'done','true',NULL,'1000:00000000000000000000000000000001','c1',940,'{"job":{"job_id":"c1","env":"ann","user":"ann","gpus":1,"time_limit_ms":null,"max_restarts":0,"queued_ns":1000000000,"stage":"done","attempt":1,"restarts":0,"interruptions":0,"then":null,"resumes_ns":null,"assigned":null,"avoids":[],"uid":1000,"name":"done","command":"true","submit_key":"1000:00000000000000000000000000000001","submitted_wall_ns":1700000000000000000},"node":"gn1","cause":"own","exit_code":0,"signal":null,"why":"","node_job":"j1","ran_ms":null,"ended_wall_ns":1700000000000000000}');
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('boots','[["00000000-0000-0000-0000-000000000000", 0]]');
INSERT INTO "meta" VALUES('clock_ns','1000000000');
INSERT INTO "meta" VALUES('wall_ns','1700000000000000000');
CREATE TABLE payloads (spec_id TEXT PRIMARY KEY, env TEXT, ended INTEGER, size_bytes INTEGER NOT NULL, cwd BLOB NOT NULL,
  value BLOB NOT NULL);
INSERT INTO "payloads" VALUES('c1','ann',1,124,X'',X'7B2261726776223A205B2274727565225D2C2022637764223A20222F222C2022656E7669726F6E223A205B22504154483D2F62696E225D2C20226E616D65223A2022646F6E65222C202275736572223A2022616E6E222C2022756964223A20313030302C2022676964223A20313030302C202267707573223A20317D');
INSERT INTO "payloads" VALUES('c2',NULL,NULL,124,X'',X'7B2261726776223A205B2274727565225D2C2022637764223A20222F222C2022656E7669726F6E223A205B22504154483D2F62696E225D2C20226E616D65223A202272756E73222C202275736572223A2022616E6E222C2022756964223A20313030302C2022676964223A20313030302C202267707573223A20327D');
INSERT INTO "payloads" VALUES('c3',NULL,NULL,125,X'',X'7B2261726776223A205B2274727565225D2C2022637764223A20222F222C2022656E7669726F6E223A205B22504154483D2F62696E225D2C20226E616D65223A20227761697473222C202275736572223A2022626F62222C2022756964223A20313030312C2022676964223A20313030312C202267707573223A20327D');
INSERT INTO "payloads" VALUES('c4',NULL,NULL,124,X'',X'7B2261726776223A205B2274727565225D2C2022637764223A20222F222C2022656E7669726F6E223A205B22504154483D2F62696E225D2C202275736572223A2022616E6E222C2022756964223A20313030302C2022676964223A20313030302C202267707573223A20312C20226E616D65223A202274727565227D');
CREATE TABLE programs (number INTEGER PRIMARY KEY, env TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, UNIQUE (env, key));
CREATE TABLE records (record_id INTEGER PRIMARY KEY, env TEXT NOT NULL, granted_wall_ns INTEGER NOT NULL, value TEXT NOT NULL);
CREATE TABLE samples (number INTEGER PRIMARY KEY, env TEXT NOT NULL, value TEXT NOT NULL);
CREATE TABLE web_tokens (token_id TEXT PRIMARY KEY, env TEXT, sha256 TEXT NOT NULL, made_by TEXT NOT NULL,
  made_wall_ns INTEGER NOT NULL, expires_wall_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX records_of_env ON records (env, record_id);
CREATE INDEX events_of_env ON events (env, sequence);
CREATE INDEX history_of_env ON history (env, number, size_bytes);
CREATE INDEX history_of_command ON history (env, command, number) WHERE ran_ms IS NOT NULL;
CREATE INDEX history_of_key ON history (env, key) WHERE key != '';
CREATE INDEX history_of_spec ON history (spec_id);
CREATE INDEX payloads_of_env ON payloads (env, ended, size_bytes) WHERE env IS NOT NULL;
CREATE INDEX gpu_minutes_by_minute ON gpu_minutes (minute);
CREATE INDEX samples_of_env ON samples (env, number);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('history',1);
COMMIT;
PRAGMA user_version = 1;
PRAGMA application_id = 1313687620;
