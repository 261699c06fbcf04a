"""The same weights under other layouts: what is compared, what is damaged, and what a report accounts for."""
