-- A cache of the items, made again whenever this file changes. `models` has a row for each model with a label or a result.
CREATE TABLE files (path TEXT PRIMARY KEY, size INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE hidden (id TEXT PRIMARY KEY, file TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE all_labels (
    id TEXT PRIMARY KEY, file TEXT NOT NULL, model TEXT NOT NULL, contributor TEXT NOT NULL, created TEXT NOT NULL, sought TEXT NOT NULL,
    item TEXT NOT NULL);
CREATE INDEX labels_model ON all_labels (model, contributor, created, id);
CREATE INDEX labels_contributor ON all_labels (contributor, created);
CREATE INDEX labels_file ON all_labels (file);
CREATE TABLE all_results (
    id TEXT PRIMARY KEY, file TEXT NOT NULL, key TEXT NOT NULL, analyzer TEXT NOT NULL, model TEXT NOT NULL, created TEXT NOT NULL,
    whole INTEGER NOT NULL, wasted INTEGER, shapes TEXT NOT NULL, sought TEXT NOT NULL, item TEXT NOT NULL);
CREATE INDEX results_key ON all_results (key);
CREATE INDEX results_model ON all_results (model, created);
CREATE INDEX results_shapes ON all_results (shapes) WHERE shapes <> '';
CREATE INDEX results_sought ON all_results (created, sought, id);
CREATE INDEX results_file ON all_results (file);
CREATE VIEW results AS SELECT * FROM all_results WHERE id NOT IN (SELECT id FROM hidden);
-- The newest label of each contributor for a model, unless that one is hidden.
CREATE VIEW labels AS SELECT * FROM all_labels AS label WHERE id NOT IN (SELECT id FROM hidden) AND NOT EXISTS (
    SELECT 1 FROM all_labels AS newer WHERE newer.model = label.model AND newer.contributor = label.contributor
    AND (newer.created, newer.id) > (label.created, label.id));
CREATE VIEW models AS SELECT model, MAX(updated) AS updated,
    (SELECT item FROM results WHERE results.model = subjects.model AND analyzer = 'dtype' AND whole ORDER BY created DESC LIMIT 1) AS passport,
    (SELECT item FROM results WHERE results.model = subjects.model AND wasted IS NOT NULL
        ORDER BY analyzer = 'check' DESC, created DESC LIMIT 1) AS saving,
    (SELECT COUNT(*) FROM results WHERE results.model = subjects.model) AS results
    FROM (SELECT model, MAX(created) AS updated FROM results GROUP BY model
        UNION ALL SELECT model, MAX(created) FROM labels GROUP BY model) AS subjects
    GROUP BY model;
