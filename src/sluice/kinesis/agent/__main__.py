"""Runs an agent; see `sluice.kinesis.agent.agent`."""

import os
import sys

from sluice.kinesis.agent.agent import main

main(sys.argv[1:])
os._exit(0)  # does not wait for threads that wait for the service
