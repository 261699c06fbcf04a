-- The tables of the library. `models` has a row per model with a label or a result; `reports` the JSON of `results`, compressed.
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE labels (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, model TEXT NOT NULL, model_key TEXT NOT NULL, precision TEXT NOT NULL,
    contributor TEXT NOT NULL, provenance TEXT NOT NULL, created TEXT NOT NULL, current INTEGER NOT NULL, flags INTEGER NOT NULL DEFAULT 0,
    disputed INTEGER NOT NULL DEFAULT 0, sought TEXT NOT NULL, record TEXT NOT NULL, batch TEXT, published TEXT NOT NULL DEFAULT '');
CREATE INDEX labels_model ON labels (model_key, contributor, provenance, created, id);
CREATE INDEX labels_contributor ON labels (contributor, created);
CREATE INDEX labels_sought ON labels (sought);
CREATE INDEX labels_disputed ON labels (disputed) WHERE disputed;
CREATE INDEX labels_unpublished ON labels (batch) WHERE published = '';
CREATE TABLE flags (
    id TEXT PRIMARY KEY, label TEXT NOT NULL, contributor TEXT NOT NULL, provenance TEXT NOT NULL, created TEXT NOT NULL,
    record TEXT NOT NULL, batch TEXT, published TEXT NOT NULL DEFAULT '');
CREATE INDEX flags_label ON flags (label);
CREATE INDEX flags_contributor ON flags (contributor, created);
CREATE INDEX flags_unpublished ON flags (batch) WHERE published = '';
CREATE TABLE results (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, key TEXT NOT NULL, analyzer TEXT NOT NULL, model TEXT NOT NULL,
    model_key TEXT NOT NULL,
    created TEXT NOT NULL, size INTEGER NOT NULL, packed INTEGER NOT NULL, overview INTEGER NOT NULL, storage TEXT NOT NULL,
    passed_through TEXT NOT NULL, trained_in TEXT NOT NULL, fp16_risk TEXT NOT NULL, contributor TEXT NOT NULL, sought TEXT NOT NULL,
    public INTEGER NOT NULL, record TEXT NOT NULL, batch TEXT, published TEXT NOT NULL DEFAULT '', shapes TEXT NOT NULL DEFAULT '',
    bytes INTEGER, wasted INTEGER);
CREATE INDEX results_shapes ON results (shapes) WHERE shapes <> '';
CREATE INDEX results_key ON results (key);
CREATE INDEX results_model ON results (model_key, analyzer, created);
CREATE INDEX results_packed ON results (packed);
CREATE INDEX results_sought ON results (sought);
CREATE INDEX results_unpublished ON results (batch) WHERE published = '' AND public;
CREATE TABLE reports (number INTEGER PRIMARY KEY, packed BLOB NOT NULL);
CREATE TABLE models (
    number INTEGER PRIMARY KEY, model_key TEXT NOT NULL UNIQUE, model TEXT NOT NULL, storage TEXT NOT NULL, passed_through TEXT NOT NULL,
    trained_in TEXT NOT NULL, fp16_risk TEXT NOT NULL, result TEXT NOT NULL, commit_id TEXT NOT NULL, precision TEXT NOT NULL,
    contributors INTEGER NOT NULL, disputed INTEGER NOT NULL, labels INTEGER NOT NULL, results INTEGER NOT NULL, updated TEXT NOT NULL,
    own INTEGER NOT NULL, proposed TEXT NOT NULL, evidence TEXT NOT NULL, bytes INTEGER, wasted INTEGER);
CREATE INDEX models_disputed ON models (disputed) WHERE disputed;
CREATE TABLE dataset_files (path TEXT PRIMARY KEY, items INTEGER NOT NULL, refused INTEGER NOT NULL, reason TEXT NOT NULL) WITHOUT ROWID;
