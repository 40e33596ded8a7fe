"""The studio: a local web page over run folders, of live and finished runs.

`library` finds runs, `index` finds an episode in a journal of gigabytes, the modules ``view_*`` answer the page's
questions as plain data, `server` and `security` are the web server. It writes only an index, which can be deleted at
any time, and the ratings that people give (`feedback`). The page itself is in ``page/``.
"""
