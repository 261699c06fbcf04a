"""Addresses that outlive a visit: stored results, badges, embeds, the library as files, and who a visitor is."""
