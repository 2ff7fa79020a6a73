"""A person against an agent, in the browser: ``parcade race``.

``book`` saves what was played under a name. ``contest`` plays one episode: the person alone, side by side
with an agent, or against it on one console. ``player`` is the process that plays in real time, and ``pages``
connects it to pages: one plays, all others watch. ``training`` is the training that the person races.
``server`` adds the routes to the dashboard's server.
"""
