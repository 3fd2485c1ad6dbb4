"""``rowclaim demo``: the whole story on embedded servers, every service its own process, told with a verdict.

    stage      an installation of its own: servers, vendors and services, started by the commands an operator types
    stories    one module a slice: what buyers, vendors and misfortune do, and what must be true at the end
    verdict    the checks, read over the wires from the database and the vendors' log, and the JSON they become

Nothing here imports a slice: what is shown is what somebody outside can see.
"""
