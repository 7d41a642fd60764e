"""The command ``sluice``: looks at, checks and repairs what queries leave behind. No JVM, no PySpark.

A command is a module of `sluice.cli.commands`. `sluice.cli.app` finds it there; nothing lists the commands.
"""
