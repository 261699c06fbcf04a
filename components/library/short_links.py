"""Names results in short links, by the first characters of their ids in base 32, as few as tell a result from every earlier one."""

import re
import sqlite3

# Crockford's base 32: no letter looks like a digit. One that does is read as that digit.
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_READ_AS = str.maketrans("oil", "011")
# Characters of a code. At 10, which are 50 bits of the id, the probability that any two of 100,000 results share a code is 4e-6.
_SHORTEST, _LONGEST = 10, 51
_CODE = re.compile(f"[{_DIGITS}]{{{_SHORTEST},{_LONGEST}}}")
_HEX, _BITS = 64, 256


def code_of(connection: sqlite3.Connection, result_id: str) -> str:
    """Return the shortest code by which `find` finds this result. Later results whose ids begin alike get longer ones."""
    number = int(result_id, 16)
    whole = "".join(_DIGITS[number >> (_BITS - 5 * (place + 1)) & 31] for place in range(_LONGEST))
    return next((whole[:length] for length in range(_SHORTEST, _LONGEST) if find(connection, whole[:length]) == result_id), whole)


def find(connection: sqlite3.Connection, code: str) -> str | None:
    """Return the id of the result whose id begins with ``code``, of several the one that was stored here first; None for anything else.

    A row of the dataset may claim any time at which its result was made.
    """
    code = code[: _LONGEST + 1].lower().translate(_READ_AS)
    if not _CODE.fullmatch(code):
        return None
    first = sum(_DIGITS.index(digit) << (_BITS - 5 * (place + 1)) for place, digit in enumerate(code))
    last = first | (1 << (_BITS - 5 * len(code))) - 1
    # The plus makes SQLite seek the ids in their index, instead of reading all results in their order.
    asked = "SELECT id FROM results WHERE id BETWEEN ? AND ? ORDER BY +number LIMIT 1"
    row = connection.execute(asked, (f"{first:0{_HEX}x}", f"{last:0{_HEX}x}")).fetchone()
    return None if row is None else str(row[0])
