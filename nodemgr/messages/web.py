"""Messages of the web page: its tokens, its verbs, its addresses."""

from __future__ import annotations

from client_plugin.messages.form import COMMAND_LINE, RIGHTS, SETTINGS, WEB, Message

NO_TOKEN_FORM = Message(
    WEB, "this is no token of the web page", "`nodemgr web token` makes one", code="token"
)
UNKNOWN_TOKEN = Message(
    WEB,
    "this token is unknown here, or was revoked",
    "`nodemgr web token` makes one",
    code="token",
)
TOKEN_EXPIRED = Message(
    WEB, "this token has expired", "`nodemgr web token` makes one", code="token"
)
TOKEN_OF_REMOVED_ENV = Message(
    WEB,
    "the environment of this token was removed",
    "`nodemgr web token` makes one of another environment",
    code="token",
)
NEEDS_TOKEN = Message(
    WEB,
    "this needs a token of the web page",
    "`nodemgr web token` makes one",
    code="token",
)
NEEDS_ADMIN_TOKEN = Message(
    RIGHTS,
    "this needs an administrator's token",
    "`nodemgr web token --admin` makes one",
    code="forbidden",
)
TOKEN_OF_OTHER_ENV = Message(
    RIGHTS,
    "this token is for environment {env} alone",
    "enter a token of the other environment",
    code="forbidden",
)
NOT_OF_TOKEN = Message(
    RIGHTS,
    "{refusal}; this token is for environment {env} alone",
    "enter a token of the other environment",
    code="forbidden",
)
MANY_TOKENS = Message(
    WEB,
    "{owner} has {limit} tokens of the web page already",
    "revoke one (`nodemgr web tokens` lists them)",
    code="refused",
)
NO_TOKEN = Message(
    WEB,
    "there is no token {token!r}",
    "`nodemgr web tokens` lists them",
    code="not_found",
)
ENV_HAS_NO_TOKEN = Message(
    WEB,
    "{env} has no token {token!r}",
    "`nodemgr web tokens` lists them",
    code="not_found",
)
TOKEN_FOR_WHOM = Message(
    COMMAND_LINE,
    "a token is of one environment or of an administrator",
    "say --env ENV or --admin",
    code="usage",
)
TOKEN_VALIDITY = Message(
    COMMAND_LINE, "a token must be valid for at least 1min and at most 90d", code="usage"
)
NO_WEB_PAGE = Message(
    SETTINGS,
    "this manager serves no web page",
    "start it with --web 127.0.0.1:8088 (or set `web`)",
    code="refused",
)
MUST_BE_TOKENS = Message(WEB, "must be a list of at most {limit} tokens", code="usage")
