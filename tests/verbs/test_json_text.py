"""JSON for a terminal: the same value, and no character that acts on the terminal."""

from __future__ import annotations

import json

import pytest

from client_plugin.verbs.presentation.tables import json_text

ACTING = "\x1b[31m\x07\r \x7f \x9b31m \u202egnp.exe \u2066 \u200b \ufeff \udc80 \U000e0041"


@pytest.mark.parametrize("form", [{}, {"indent": 2}, {"separators": (",", ":")}])
def test_nothing_in_it_acts_and_nothing_is_lost(form: object) -> None:
    text = json_text({ACTING: [ACTING, "Grüße 🎉 日本"]}, **form)  # type: ignore[arg-type]
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert json.loads(text) == {ACTING: [ACTING, "Grüße 🎉 日本"]}
    assert "Grüße 🎉 日本" in text
