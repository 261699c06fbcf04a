-- A cache of the items, made again whenever this file changes.
CREATE TABLE files (path TEXT PRIMARY KEY, size INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE hidden (id TEXT PRIMARY KEY, file TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE all_labels (
    id TEXT PRIMARY KEY, file TEXT NOT NULL, model TEXT NOT NULL, contributor TEXT NOT NULL, created TEXT NOT NULL, sought TEXT NOT NULL,
    item TEXT NOT NULL);
CREATE TABLE all_results (
    id TEXT PRIMARY KEY, file TEXT NOT NULL, key TEXT NOT NULL, analyzer TEXT NOT NULL, model TEXT NOT NULL, created TEXT NOT NULL,
    whole INTEGER NOT NULL, wasted INTEGER, shapes TEXT NOT NULL, sought TEXT NOT NULL, item TEXT NOT NULL);
CREATE VIEW results AS SELECT * FROM all_results WHERE id NOT IN (SELECT id FROM hidden);
-- The newest label of each contributor for a model, unless that one is hidden.
CREATE VIEW labels AS SELECT * FROM all_labels AS label WHERE id NOT IN (SELECT id FROM hidden) AND NOT EXISTS (
    SELECT 1 FROM all_labels AS newer WHERE newer.model = label.model AND newer.contributor = label.contributor
    AND (newer.created, newer.id) > (label.created, label.id));
-- Of a model's results: the newest passport of all of it, and the newest row that says what could be saved.
CREATE VIEW passports AS SELECT * FROM results WHERE analyzer = 'dtype' AND whole;
CREATE VIEW savings AS SELECT * FROM results WHERE wasted IS NOT NULL;
-- What is not published yet.
CREATE VIEW backlog AS SELECT id FROM all_labels WHERE file BETWEEN 'unpublished/labels/' AND 'unpublished/labels/~'
    UNION ALL SELECT id FROM all_results WHERE file BETWEEN 'unpublished/' AND 'unpublished/~';
-- Made after the first items, which takes half as long as before.
CREATE INDEX IF NOT EXISTS labels_model ON all_labels (model, contributor, created, id);
CREATE INDEX IF NOT EXISTS labels_contributor ON all_labels (contributor, created);
CREATE INDEX IF NOT EXISTS labels_file ON all_labels (file);
CREATE INDEX IF NOT EXISTS results_key ON all_results (key);
CREATE INDEX IF NOT EXISTS results_model ON all_results (model, created);
CREATE INDEX IF NOT EXISTS results_shapes ON all_results (shapes) WHERE shapes <> '';
CREATE INDEX IF NOT EXISTS results_sought ON all_results (created, sought, id);
CREATE INDEX IF NOT EXISTS results_file ON all_results (file);
