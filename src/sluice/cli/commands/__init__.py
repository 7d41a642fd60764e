"""The commands, one module each: `sluice.cli.app.Command` says what a module has."""
