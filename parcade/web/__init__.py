"""The dashboard: a local web server that shows runs while they train, and its page.

``serve`` starts it, ``app`` routes requests, ``security`` decides who may ask. ``curves`` selects metrics of
several runs, ``live`` tells open pages what changed, ``inside`` describes one run.
``player`` is a process of its own in which a checkpoint plays, and ``agent`` connects it to a page.
``static/`` holds the page: plain JavaScript modules and CSS, without a build step.
"""
