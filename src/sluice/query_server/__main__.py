"""Runs a query server; see `sluice.query_server.server`."""

import os
import sys

from sluice.query_server.server import main

main(sys.argv[1:])
os._exit(0)  # does not wait for the acceptor
