"""The commands, one module each: ``add(commands)`` describes it to the parser, ``run(options)``
does it."""
