"""A name whose parts act as markup, a command to a terminal, one to a CI runner, or reverse a line, where they are not shown as text."""

PARTS = ("<script>alert(1)", "\x1b[31m", "\n::error::", "\u202e")
HOSTILE = "".join(PARTS)
