-- The newest models that meet a condition, each with its newest result, its newest passport, its newest row that says what could be saved, and its results.
WITH newest AS (
    SELECT model, MAX(updated) AS updated FROM (
        SELECT model, MAX(created) AS updated FROM all_results WHERE {condition} GROUP BY model
        UNION ALL SELECT model, MAX(created) FROM all_labels WHERE {condition} GROUP BY model)
    GROUP BY model ORDER BY updated DESC, model LIMIT ?)
SELECT model, updated,
    (SELECT item FROM results WHERE results.model = newest.model ORDER BY created DESC LIMIT 1),
    (SELECT item FROM passports WHERE passports.model = newest.model ORDER BY created DESC LIMIT 1),
    (SELECT item FROM savings WHERE savings.model = newest.model ORDER BY analyzer = 'check' DESC, created DESC LIMIT 1),
    (SELECT COUNT(*) FROM results WHERE results.model = newest.model)
FROM newest ORDER BY updated DESC, model
