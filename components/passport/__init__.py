"""The precision passport: what the page shows of dtype detection."""
