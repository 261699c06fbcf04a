"""The precision passport: dtype detection on the page."""
