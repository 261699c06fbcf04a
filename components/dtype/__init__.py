"""The page of dtype detection, the precision passport: form, result, figures, tables and texts."""
