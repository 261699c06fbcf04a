"""Renders a result: one fragment of HTML for page, document, frame and notebook; tiles for card and badge; Markdown; files."""
