"""Messages of the web page: its tokens, its verbs, its addresses."""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
)

NO_TOKEN_FORM = Message(
    "this is no token of the web page", "`nodemgr web token` makes one", code="token"
)
UNKNOWN_TOKEN = Message(
    "this token is unknown here, or was revoked",
    "`nodemgr web token` makes one",
    code="token",
)
TOKEN_EXPIRED = Message("this token has expired", "`nodemgr web token` makes one", code="token")
TOKEN_OF_REMOVED_ENV = Message(
    "the environment of this token was removed",
    "`nodemgr web token` makes one of another environment",
    code="token",
)
NEEDS_TOKEN = Message(
    "this needs a token of the web page",
    "`nodemgr web token` makes one",
    code="token",
)
NEEDS_ADMIN_TOKEN = Message(
    "this needs an administrator's token",
    "`nodemgr web token --admin` makes one",
    code="forbidden",
)
TOKEN_OF_OTHER_ENV = Message(
    "this token is for environment {env} alone",
    "enter a token of the other environment",
    code="forbidden",
)
NOT_OF_TOKEN = Message(
    "{refusal}; this token is for environment {env} alone",
    "enter a token of the other environment",
    code="forbidden",
)
MANY_TOKENS = Message(
    "{owner} has {limit} tokens of the web page already",
    "revoke one (`nodemgr web tokens` lists them)",
    code="refused",
)
NO_TOKEN = Message(
    "there is no token {token!r}",
    "`nodemgr web tokens` lists them",
    code="not_found",
)
ENV_HAS_NO_TOKEN = Message(
    "{env} has no token {token!r}",
    "`nodemgr web tokens` lists them",
    code="not_found",
)
TOKEN_FOR_WHOM = Message(
    "a token is of one environment or of an administrator",
    "say --env ENV or --admin",
    code="usage",
)
TOKEN_VALIDITY = Message("a token must be valid for at least 1min and at most 90d", code="usage")
NO_WEB_PAGE = Message(
    "this manager serves no web page",
    "start it with --web 127.0.0.1:8088 (or set `web`)",
    code="refused",
)
MUST_BE_TOKENS = Message("must be a list of at most {limit} tokens", code="usage")

# -- the start of the page process --

PAGE_UNBOUND = Message(
    "the web page cannot listen on {host}:{port} ({error})",
    "name another address with --web",
)
NO_FREE_UID = Message(
    "the web page needs a user of its own, and all from {first} to {last} are taken",
    "free one of these user ids",
)
NO_PAGE_GROUP = Message(
    "the web page of a service needs the group {group} and the unit nodemgr-web",
    "run `nodemgr setup` again",
)
VIEWS_SOCKET_FAILED = Message(
    "{path} cannot be made ({error})",
    "mend its directory, or name another --run-dir",
)

# -- requests of a browser --

MANAGER_AWAY = Message(
    "the manager is away, and running tasks go on",
    "wait: this page follows when it is back",
    code="away",
)
NOT_NUMBER = Message("{text!r} must be a whole number", code="usage")
NOT_TIME = Message("{text!r} must be a time in seconds since 1970", code="usage")
UNKNOWN_HOST = Message(
    "this name of the page is unknown to the manager",
    "start the manager with --web-host NAME (or set `web_hosts`)",
    code="host",
)
TOKEN_IN_ADDRESS = Message(
    "a token does not belong into an address, which others may read",
    "revoke this one (nodemgr web revoke) and enter a new one on the page",
    code="usage",
)
OTHER_SITE = Message(
    "another site's page may not act here",
    "act on the page of the manager itself",
    code="forbidden",
)
NOT_JSON_TYPE = Message("an action must have the Content-Type application/json", code="usage")
ACTION_NEEDS_TOKEN = Message(
    "an action needs a token", "`nodemgr web token` makes one", code="token"
)
UNKNOWN_PARAMETER = Message(
    "unknown parameter {name!r}", "the parameters are {known}", code="usage"
)
NOTHING_HERE = Message(
    "there is nothing at this address", "open the page itself, /", code="not_found"
)
NO_FILE = Message("there is no such file", "open the page itself, /", code="not_found")
ACTION_NOT_OBJECT = Message("an action must be a flat JSON object", code="usage")
MANY_VIEWERS = Message(
    "as many pages as allowed are open",
    "close one, wait, or enter a token",
    code="viewers",
)
