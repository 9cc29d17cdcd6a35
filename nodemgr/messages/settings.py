"""Messages about the administrator's settings: a value in config.toml, a variable, a flag."""

from __future__ import annotations

from client_plugin.messages.form import Part

# -- what WRONG_SETTING says of a value --

MUST_BE = Part("must be {form}")
NOT_SITE_PATH = Part("{value!r} is no path of a site: write it as /gpus")
