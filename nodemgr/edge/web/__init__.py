"""The manager's side of the web page: tokens of viewers, views for each, its process's start.

May import: core, and the rooms host, kernel, store, rpc, api, engine, clients and page.
"""
